#include "lockstep/detect/slow_stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "lockstep/base/median.h"
#include "lockstep/detect/lone_pipelines.h"
#include "lockstep/detect/pipeline_times.h"
#include "lockstep/detect/slow_rank.h"

namespace lockstep::detect {
namespace {

// Who is slow is so in each of three quarters of the time, more than once (slow_rank.h): where the lengths of steps
// differ, also in the one that holds the longest.
constexpr size_t kStepsWanted = 16;

// A rank's sends and receives by their launch.
std::vector<const trace::CommOp*> TransfersOf(const Lanes& lanes, int rank) {
  std::vector<const trace::CommOp*> ops;
  for (const auto& [ends, lane] : lanes) {
    if (std::get<1>(ends) == rank) ops.insert(ops.end(), lane.sends.begin(), lane.sends.end());
    if (std::get<2>(ends) == rank) ops.insert(ops.end(), lane.receives.begin(), lane.receives.end());
  }
  std::ranges::stable_sort(ops, {}, &trace::CommOp::created_ns);
  return ops;
}

// After so many the same come again, to the same peers, all but a few. 0: they don't. One microbatch is like another,
// but for those that fill the pipeline and leave it: these are few only where they cost next to nothing.
size_t PeriodOf(std::span<const trace::CommOp* const> ops) {
  constexpr size_t kFew = 100;  // one of so many
  const auto kind = [](const trace::CommOp& op) { return std::tuple{op.direction, op.peer, op.bytes}; };
  for (size_t period = 2; period * JobSteps::kWanted <= ops.size(); ++period) {
    size_t others = 0;
    for (size_t i = period; i < ops.size() && kFew * others <= ops.size(); ++i)
      others += kind(*ops[i]) != kind(*ops[i - period]);
    if (kFew * others <= ops.size()) return period;
  }
  return 0;
}

// Steps end where the rank waits for longest: what lies on both sides is of other steps for all.
JobSteps StepsOf(std::span<const trace::CommOp* const> ops, size_t period) {
  std::vector<int64_t> waited(period);
  for (size_t i = 0; i < ops.size(); ++i) waited[i % period] += ops[i]->held_up_ns;
  JobSteps steps;
  for (auto i = static_cast<size_t>(std::ranges::max_element(waited) - waited.begin()); i < ops.size(); i += period)
    steps.ends_ns.push_back(EndOf(*ops[i]));
  return steps;
}

// Where the collectives of the job tell of none, the order of a rank's sends and receives does: of the newest that are
// enough for it, for jobs do other things at other times. Of no more than a trail holds: looking for what does not come
// again takes time by the square of them.
JobSteps StepsOf(const Rounds& rounds, const Lanes& lanes, int rank, const CommThresholds& thresholds) {
  constexpr size_t kMost = 16'384;
  if (rounds.steps.size() >= JobSteps::kFewest) return rounds.steps;
  const std::vector<const trace::CommOp*> told = TransfersOf(lanes, rank);
  const std::span all = std::span(told).last(std::min(told.size(), kMost));
  if (all.empty()) return {};
  for (int64_t back_ns = ToNanos(thresholds.window).value;; back_ns *= 2) {
    const auto first = std::ranges::lower_bound(all, all.back()->created_ns - back_ns, {}, &trace::CommOp::created_ns);
    const std::span newest(first, all.end());
    const size_t period = PeriodOf(newest);
    const bool is_all = first == all.begin();
    if (period > 0 && (is_all || newest.size() > period * (kStepsWanted + 1))) return StepsOf(newest, period);
    if (is_all) return {};
  }
}

// Those of the newest time that is judged, within what is known.
std::vector<int64_t> NewestOf(const JobSteps& steps, const PipelineTimes& times, const CommThresholds& thresholds) {
  std::vector<int64_t> ends;
  for (const int64_t end_ns : steps.ends_ns)
    if (end_ns >= times.begin_ns() && end_ns <= times.end_ns()) ends.push_back(end_ns);
  if (ends.empty()) return ends;
  const int64_t window_ns = ends.back() - ToNanos(thresholds.window).value;
  const size_t wanted = ends.size() - std::min(ends.size(), kStepsWanted + 1);
  const auto in_window = std::ranges::lower_bound(ends, window_ns);
  ends.erase(ends.begin(), std::min(in_window, ends.begin() + static_cast<std::ptrdiff_t>(wanted)));
  return ends;
}

// What a rank takes beyond the middle one, in ns.
struct Beyond {
  int64_t alone = 0, waited_for = 0;
};

// Each step as a collective, before which a rank was by itself for all that it was in the step, and to which it came
// late by what the job waited for of what the others did not take.
struct AsRounds {
  Rounds rounds;
  std::map<int, Beyond> beyond;
};

AsRounds RoundsOfSteps(const PipelineTimes& times, const std::vector<int>& ranks, const std::vector<int64_t>& ends,
                       uint32_t communicator, size_t communicators) {
  AsRounds all;
  const PipelineTimes::BySteps alone = times.Alone(ends), waited_for = times.WaitedFor(ends);
  for (size_t step = 0; step + 1 < ends.size(); ++step) {
    std::vector<int64_t> of_ranks;
    for (const auto& own : alone) of_ranks.push_back(own[step]);
    const int64_t usual = LowerMedian(of_ranks);
    Round round{.communicator = communicator,
                .sequence = static_cast<int64_t>(step),
                .began_ns = ends[step],
                .place = static_cast<int64_t>(step),
                .members = ranks.size(),
                .parts = {}};
    for (size_t i = 0; i < ranks.size(); ++i) {
      const int64_t beyond = std::max<int64_t>(0, of_ranks[i] - usual);
      const double share = beyond == 0 ? 0 : static_cast<double>(beyond) / static_cast<double>(of_ranks[i]);
      const auto cost = static_cast<int64_t>(share * static_cast<double>(waited_for[i][step]));
      round.parts.push_back({ranks[i], ends[step] + cost, ends[step + 1], of_ranks[i]});
      all.beyond[ranks[i]].alone += of_ranks[i] - usual;
      all.beyond[ranks[i]].waited_for += cost;
    }
    all.rounds.all.push_back(std::move(round));
  }
  all.rounds.steps.ends_ns = ends;
  all.rounds.begin_ns = ends.front();
  all.rounds.end_ns = ends.back();
  all.rounds.told.resize(communicators);
  all.rounds.told[communicator] = static_cast<int64_t>(all.rounds.all.size());
  return all;
}

void TellOfStage(const AsRounds& all, incident::Finding& finding) {
  const std::optional<RankId> rank = incident::RankOf(finding.suspects.front());
  const auto length = static_cast<double>(all.rounds.length_ns());
  const Beyond& beyond = all.beyond.at(rank->value());
  finding.certain = false;
  finding.probe = fmt::format(
      "what rank {0} does on another machine, or what its layers take: stages of a pipeline, and others that send to "
      "each other, may differ by design",
      rank->value());
  finding.evidence = {
      fmt::format(
          "{:.1f} % of the time rank {} was by itself for longer than those that it sends to and receives from, "
          "in {} steps in {:.1f} s",
          100 * static_cast<double>(beyond.alone) / length, rank->value(), all.rounds.all.size(), length / 1e9),
      fmt::format("{:.1f} % of the time the job waited for that: in sends, receives and collectives, from rank to rank",
                  100 * static_cast<double>(beyond.waited_for) / length)};
}

// Of one pipeline. Returns why it is not known, or not of all of its ranks; empty: it is.
std::string FindIn(const LonePipeline& pipeline, const trace::CommLog& log, const Lanes& lanes, const Rounds& rounds,
                   const CommThresholds& thresholds, SlowStages& found) {
  const std::vector<int>& ranks = pipeline.ranks;
  const PipelineTimes times(log, lanes, ranks);
  const std::vector<int64_t> ends = NewestOf(StepsOf(rounds, lanes, ranks.front(), thresholds), times, thresholds);
  if (ends.size() <= JobSteps::kFewest || ends.back() - ends.front() < ToNanos(thresholds.least).value)
    return fmt::format("sends and receives of {} steps are told", std::max<size_t>(1, ends.size()) - 1);
  if (std::string why = times.WhyNot(ends.front(), ends.back()); !why.empty()) return why;
  const auto of_one = std::ranges::find_if(
      lanes, [&](const auto& lane) { return std::ranges::binary_search(ranks, std::get<1>(lane.first)); });
  const AsRounds all = RoundsOfSteps(times, ranks, ends, std::get<0>(of_one->first), log.communicators.size());
  SlowRanks slow = FindSlowRanks(log, all.rounds, thresholds, {});
  for (incident::Finding& finding : slow.findings) {
    if (finding.syndrome == incident::Syndrome::kNonCommunicationSlow) TellOfStage(all, finding);
    found.findings.push_back(std::move(finding));
  }
  if (!pipeline.alike) found.known.insert(ranks.begin(), ranks.end());
  if (slow.unsure.empty() && all.rounds.steps.size() < JobSteps::kWanted)
    return fmt::format("sends and receives of {} steps are told", all.rounds.steps.size());
  return slow.unsure;
}

}  // namespace

SlowStages FindSlowStages(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  SlowStages found;
  const std::vector<LonePipeline> pipelines = LonePipelines(log, thresholds.slow_share / 2);
  if (pipelines.empty()) return found;
  const Lanes lanes = LanesOf(log, std::numeric_limits<int64_t>::max());
  for (const LonePipeline& pipeline : pipelines) {
    if (!pipeline.alike) found.ranks.insert(pipeline.ranks.begin(), pipeline.ranks.end());
    const std::string why = FindIn(pipeline, log, lanes, rounds, thresholds, found);
    if (found.unknown.empty() && !why.empty())
      found.unknown =
          fmt::format("whether {} rank {} is slow, which no replica of it tells, is not known: {}",
                      pipeline.alike ? "any of those that send to each other with" : "a stage of the pipeline of",
                      pipeline.ranks.front(), why);
  }
  return found;
}

}  // namespace lockstep::detect
