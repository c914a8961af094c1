#include "lockstep/detect/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "lockstep/detect/evidence.h"
#include "lockstep/incident/some.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;

// gloo's own default timeout (30 min) is three times the default hang limit: work that goes on so long would be lost
// anyway.
constexpr double kPatienceWithWork = 3;

Ranks Where(const Situation& job, const std::function<bool(const RankView&)>& holds) {
  Ranks found;
  for (const RankView& view : job.ranks)
    if (holds(view)) found.push_back(&view);
  return found;
}

bool IsSure(const Finding& finding) { return finding.certain; }

Nanos HaltedSince(const Situation& job, const RankView& view) {
  return view.history->HaltedSince(job.now).value_or(job.now);
}

// A halt that began in a stall which was on already is not its cause, unless all others wait. Before the loop there is
// no stall, unless communication tells of one, only a start that one rank does not take part in.
Finding HaltFinding(const Situation& job, Syndrome syndrome, const Ranks& halted, const Ranks& all_halted) {
  Finding finding = Open(syndrome, halted, job.now);
  for (const RankView* view : halted) finding.since = std::min(finding.since, HaltedSince(job, *view));
  incident::TellSome(halted, "ranks", finding.evidence, [&](const RankView* view) {
    finding.evidence.push_back(HaltLine(job, *view, HaltedSince(job, *view)));
  });
  finding.evidence.push_back(WaitLine(job.ranks.size() - all_halted.size()));
  finding.evidence.push_back(JobLine(job));
  const bool began_it = ToSeconds(finding.since - job.advance) < HaltLimit(job);
  const bool is_late = !job.in_loop && Watched(job, finding.since) >= job.limits.first_step_limit;
  finding.certain = began_it || is_late || OthersWait(job, all_halted);
  for (const RankView* view : halted)
    finding.since = std::min(finding.since, view->history->HaltBegan(job.now).value_or(finding.since));
  return finding;
}

// Ranks without a halted one finish at most the step they are in, so half of the limit without an advance says that the
// job stands.
std::vector<Finding> HaltFindings(const Situation& job, const Ranks& halted) {
  std::vector<Finding> findings;
  if (Watched(job, job.advance) < HaltLimit(job) * 0.5) return findings;
  for (const bool frozen : {false, true}) {
    const Ranks kind = Where(job, [&](const RankView& view) {
      return Halted(*view.last) && view.last->frozen == frozen &&
             Watched(job, HaltedSince(job, view)) >= HaltLimit(job);
    });
    if (kind.empty()) continue;
    findings.push_back(HaltFinding(job, frozen ? Syndrome::kFrozen : Syndrome::kStopped, kind, halted));
  }
  return findings;
}

Finding StuckFinding(const Situation& job, Syndrome syndrome, const Ranks& suspects) {
  Finding finding = Describe(job, syndrome, suspects);
  const bool spins = syndrome == Syndrome::kSpinning;
  incident::TellSome(suspects, "ranks", finding.evidence, [&](const RankView* view) {
    const Nanos since = spins ? SpinningSince(job, *view) : StillSince(job, *view);
    finding.evidence.push_back(fmt::format(
        "rank {}: {} for {:.0f} s", view->rank.value(),
        spins ? "busy at one spot without i/o, page faults or switches" : "all threads blocked, nothing changes",
        Ago(job, since).value));
  });
  finding.certain = true;
  return finding;
}

// Certain only where everybody else waits: a rank that still works may be what a blocked one waits for.
std::vector<Finding> StuckFindings(const Situation& job) {
  const Ranks blocked = Where(job, [&](const RankView& view) { return Blocked(job, view); });
  const Ranks spinning = Where(job, [&](const RankView& view) { return Spinning(job, view); });
  Ranks stuck = blocked;
  stuck.insert(stuck.end(), spinning.begin(), spinning.end());
  std::vector<Finding> findings;
  if (!OthersWait(job, stuck)) return findings;
  if (!blocked.empty()) findings.push_back(StuckFinding(job, Syndrome::kNotEntered, blocked));
  if (!spinning.empty()) findings.push_back(StuckFinding(job, Syndrome::kSpinning, spinning));
  return findings;
}

// The ranks that wait elsewhere than most; all of them where there is no majority. Empty: they wait in one place, or
// not all wait.
struct Split {
  Ranks suspects;
  bool tie = false;
};

Split SplitByPlace(const Situation& job) {
  std::map<std::string, size_t> places;
  for (const RankView& view : job.ranks) {
    if (Place(view) != InCollective::kYes || view.stack->python.empty()) return {};
    ++places[view.stack->python];
  }
  if (places.size() < 2) return {};
  const auto& [place, count] =
      *std::max_element(places.begin(), places.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool tie = count * 2 <= job.ranks.size();
  return {Where(job, [&, &most = place](const RankView& view) { return tie || view.stack->python != most; }), tie};
}

// The suspects' places stand first, then those of the rest.
Finding SplitFinding(const Situation& job, const Split& split) {
  Finding finding = Open(Syndrome::kDesynchronised, split.suspects, job.advance);
  TellPlaces(job, split.suspects, finding.evidence);
  TellPlaces(job, Others(job, split.suspects), finding.evidence);
  finding.evidence.push_back(JobLine(job));
  if (!split.tie) return finding;
  finding.ambiguous_with.swap(finding.suspects);
  finding.probe = "in which of these places the program should be";
  return finding;
}

bool AllStill(const Situation& job) {
  return std::all_of(job.ranks.begin(), job.ranks.end(), [&](const RankView& view) {
    return Watched(job, StillSince(job, view)) >= job.limits.blocked_limit;
  });
}

// Ranks outside the collective in which the rest wait; where no stack says so, those that alone can't be read.
Ranks Outsiders(const Situation& job) {
  Ranks outside = Where(job, [](const RankView& view) { return Place(view) == InCollective::kNo; });
  const Ranks waiting = Where(job, [](const RankView& view) { return Place(view) == InCollective::kYes; });
  if (waiting.empty() || !outside.empty()) return outside;
  return Where(job, [](const RankView& view) { return Place(view) == InCollective::kUnknown; });
}

// A name without evidence.
Finding Name(const Situation& job, const Split& split) {
  const Ranks outsiders = Outsiders(job);
  if (!outsiders.empty() && outsiders.size() < job.ranks.size()) return Describe(job, Syndrome::kNotEntered, outsiders);
  if (!split.suspects.empty()) return SplitFinding(job, split);
  Finding finding = DescribeStall(job);
  if (job.ranks.front().stack == nullptr) finding.probe = "the stacks of all ranks";
  return finding;
}

// What works in a job that tells no steps may be training, whoever waits for it.
bool BeyondHangLimit(const Situation& job) {
  const bool works =
      std::any_of(job.ranks.begin(), job.ranks.end(), [&](const RankView& view) { return WorksOutside(job, view); });
  if (works && job.unseen) return false;
  return Watched(job, job.advance) >= job.limits.hang_limit * (works ? kPatienceWithWork : 1);
}

Verdict JudgeTraced(const Situation& job, const Ranks& traced) {
  Verdict verdict;
  if (!job.expects_loop || Ago(job, job.advance) < job.limits.hang_limit) return verdict;
  verdict.findings.push_back(DescribeStall(job));
  std::vector<std::string>& evidence = verdict.findings.back().evidence;
  incident::TellSome(traced, "ranks", evidence, [&](const RankView* view) {
    evidence.push_back(fmt::format("a debugger is attached to rank {}", view->rank.value()));
  });
  return verdict;
}

std::vector<Finding> StallFindings(const Situation& job) {
  std::vector<Finding> findings = StuckFindings(job);
  if (!findings.empty()) return findings;
  const Split split = SplitByPlace(job);
  const bool split_is_sure = !split.suspects.empty() && !split.tie && AllStill(job);
  findings.push_back(split_is_sure ? SplitFinding(job, split) : Name(job, split));
  findings.back().certain = split_is_sure || BeyondHangLimit(job);
  return findings;
}

// Without steps nobody knows what a rank outside has to do there, nor where a restart would begin. That somebody waits
// communication tells better than that nobody advances.
void OnlyName(std::vector<Finding>& stall) {
  std::erase_if(stall, [](const Finding& finding) { return finding.syndrome == Syndrome::kStalled; });
  for (Finding& finding : stall) finding.certain = false;
}

}  // namespace

Verdict ApplyHangRules(const Situation& job) {
  if (job.ranks.empty() || Ago(job, job.advance) < job.limits.least_stall * 0.5) return {};
  const Ranks traced = Where(job, [](const RankView& view) { return view.last->traced; });
  if (!traced.empty()) return JudgeTraced(job, traced);
  const Ranks halted = Where(job, [](const RankView& view) { return Halted(*view.last); });
  if (halted.size() == job.ranks.size()) return {};
  Verdict verdict;
  verdict.findings = HaltFindings(job, halted);
  const bool halt_is_sure = std::any_of(verdict.findings.begin(), verdict.findings.end(), IsSure);
  if (halt_is_sure || !job.expects_loop || Watched(job, job.advance) < NamingLimit(job)) return verdict;
  std::vector<Finding> stall = StallFindings(job);
  if (job.unseen && !BeyondHangLimit(job)) OnlyName(stall);
  const bool stall_is_sure = !stall.empty() && IsSure(stall.front());
  verdict.findings.insert(stall_is_sure ? verdict.findings.begin() : verdict.findings.end(), stall.begin(),
                          stall.end());
  verdict.wants_stacks = !stall_is_sure;
  return verdict;
}

}  // namespace lockstep::detect
