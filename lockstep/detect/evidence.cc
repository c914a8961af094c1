#include "lockstep/detect/evidence.h"

#include <fmt/format.h>

#include "lockstep/incident/some.h"

namespace lockstep::detect {
namespace {

constexpr Seconds kLoadSpan{5};

const char* PlaceVerb(const StackSample& stack) {
  if (stack.in_collective == InCollective::kYes) return "waits in";
  return stack.waits_forever ? "is blocked in" : "is in";
}

const std::string& PlaceName(const StackSample& stack) {
  static const std::string kUnreadable = "unreadable frames";
  if (!stack.python.empty()) return stack.python;
  return stack.native.empty() ? kUnreadable : stack.native;
}

// "rank 0 is in evaluate.py:33 in evaluate, 0.97 of a core"
std::string PlaceLine(const Situation& job, const RankView& view) {
  if (view.stack == nullptr) return fmt::format("rank {}: its stack was not read", view.rank.value());
  const double load = view.history->Load(job.now - ToNanos(kLoadSpan), job.now);
  return fmt::format("rank {} {} {}, {:.2f} of a core", view.rank.value(), PlaceVerb(*view.stack),
                     PlaceName(*view.stack), load);
}

}  // namespace

incident::Finding Open(incident::Syndrome syndrome, const Ranks& suspects, Nanos since) {
  incident::Finding finding;
  finding.syndrome = syndrome;
  finding.suspects = Suspects(suspects);
  finding.since = since;
  return finding;
}

std::vector<incident::Suspect> Suspects(const Ranks& ranks) {
  std::vector<incident::Suspect> suspects;
  for (const RankView* view : ranks) suspects.push_back(incident::SuspectRank(view->rank));
  return suspects;
}

void TellPlaces(const Situation& job, const Ranks& ranks, std::vector<std::string>& evidence) {
  incident::TellSome(ranks, "ranks", evidence,
                     [&](const RankView* view) { evidence.push_back(PlaceLine(job, *view)); });
}

std::string JobLine(const Situation& job) {
  if (job.waits || job.usual_quiet)
    return fmt::format("{}; nothing has moved in its communication for {:.0f} s",
                       job.unseen ? "the job tells no steps" : "training has not begun", Ago(job, job.advance).value);
  if (job.unseen) return "the job tells no steps";
  if (!job.in_loop) return fmt::format("training has not begun {:.0f} s after the start", Ago(job, job.advance).value);
  std::string text =
      fmt::format("the job last {} {:.1f} s ago", job.stepped ? "stepped" : "advanced", Ago(job, job.advance).value);
  if (job.step_time) text += fmt::format(", its step takes {:.2g} s", job.step_time->median.value);
  return text;
}

std::string WaitLine(size_t count) {
  return count == 1 ? "1 rank waits for the others" : fmt::format("{} ranks wait for the others", count);
}

std::string HaltLine(const Situation& job, const RankView& view, Nanos since) {
  return fmt::format("rank {}: {} for {:.1f} s", view.rank.value(),
                     view.last->frozen ? "frozen by a cgroup" : "state T", Ago(job, since).value);
}

incident::Finding Describe(const Situation& job, incident::Syndrome syndrome, const Ranks& suspects) {
  incident::Finding finding = Open(syndrome, suspects, job.advance);
  TellPlaces(job, suspects, finding.evidence);
  finding.evidence.push_back(WaitLine(job.ranks.size() - suspects.size()));
  finding.evidence.push_back(JobLine(job));
  return finding;
}

incident::Finding DescribeStall(const Situation& job) {
  incident::Finding finding = Open(incident::Syndrome::kStalled, {}, job.advance);
  finding.evidence = {fmt::format("none of {} ranks advances", job.ranks.size()), JobLine(job)};
  Ranks read;
  for (const RankView& view : job.ranks)
    if (view.stack != nullptr) read.push_back(&view);
  TellPlaces(job, read, finding.evidence);
  return finding;
}

}  // namespace lockstep::detect
