#include "lockstep/detect/comm_slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lockstep/detect/comm_rounds.h"
#include "lockstep/detect/slow_group.h"
#include "lockstep/detect/slow_link.h"
#include "lockstep/detect/slow_rank.h"
#include "lockstep/detect/slow_stage.h"

namespace lockstep::detect {
namespace {

int RanksOf(const trace::CommLog& log) {
  size_t ranks = log.reported.size();  // those that say nothing lose the same
  for (const trace::Communicator& communicator : log.communicators) ranks = std::max(ranks, communicator.ranks.size());
  return static_cast<int>(ranks);
}

bool AreEnough(const Rounds& rounds, const CommThresholds& thresholds) {
  return rounds.newest().size() >= thresholds.window_ops &&
         rounds.length_ns() >= std::max<int64_t>(1, ToNanos(thresholds.least).value);
}

// Of the newest collectives of which anything is told.
struct Known {
  std::vector<int> hardly;  // ranks, of more than half of whose collectives nothing can be judged
  bool all = true;          // but for a few
};

Known KnownOf(const trace::CommLog& log, const Rounds& rounds) {
  constexpr double kFew = 0.01;
  absl::flat_hash_map<int, int64_t> told, known;  // by rank
  for (size_t i = 0; i < log.communicators.size(); ++i)
    if (rounds.told[i] > 0)
      for (const int rank : log.communicators[i].ranks) told[rank] += rounds.told[i];
  for (const Round& round : rounds.newest())
    for (const Part& part : round.parts) ++known[part.rank];
  Known result;
  int64_t all = 0, of_all = 0;
  for (const auto& [rank, count] : told) {
    all += count;
    of_all += known[rank];
    if (2 * known[rank] < count) result.hardly.push_back(rank);
  }
  std::ranges::sort(result.hardly);
  result.all = static_cast<double>(all - of_all) <= kFew * static_cast<double>(all);
  return result;
}

std::string TooFew(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  const bool any = std::ranges::any_of(
      log.ops, [](const trace::CommOp& op) { return op.direction == trace::Direction::kCollective; });
  const bool ended = std::ranges::any_of(log.counts, [](const trace::CommCount& count) { return count.completed > 0; });
  if (!any && ended) return "no record of any collective is there, though ranks have ended some: all are lost";
  const int64_t told = std::accumulate(rounds.told.begin(), rounds.told.end(), int64_t{0});
  if (told == 0) return "";
  return fmt::format(
      "{} collectives known of nearly all members, in {:.1f} s, of {} known of any: whether anybody is slow "
      "can't be told of fewer than {}, nor of less than {:.3g} s",
      rounds.newest().size(), ToSeconds(Nanos{rounds.length_ns()}).value, told, thresholds.window_ops,
      thresholds.least.value);
}

std::string TooShort(const Rounds& rounds, const Known& known) {
  if (!known.hardly.empty())
    return fmt::format(
        "most records of the collectives of {} rank(s), {} the first of them, or of those that they met, are lost: "
        "whether they are slow can't be told",
        known.hardly.size(), known.hardly.front());
  if (rounds.share >= 1) return "";
  if (rounds.share <= 0 && rounds.steps.wanted_ns > 0)
    return fmt::format("no step of the job is known: whether anybody is slow can't be told of less than {:.0f} s",
                       ToSeconds(Nanos{rounds.steps.wanted_ns}).value);
  if (rounds.share <= 0) return "no step of the job is known: whether anybody is slow can't be told";
  const double seconds = ToSeconds(Nanos{rounds.length_ns()}).value;
  return fmt::format(
      "collectives of {:.0f} s: ranks are by themselves for so long between two that whether anybody is "
      "slow can't be told of less than {:.0f} s",
      seconds, seconds / rounds.share);
}

// Of any of `ranks`; of whichever: none given.
bool IsOfSlowRank(const incident::Finding& finding, const std::set<int>* ranks) {
  return finding.syndrome == incident::Syndrome::kNonCommunicationSlow &&
         (ranks == nullptr || std::ranges::any_of(finding.suspects, [&](const incident::Suspect& suspect) {
            const std::optional<RankId> rank = incident::RankOf(suspect);
            return rank && ranks->contains(rank->value());
          }));
}

bool IsAnySlow(const std::vector<incident::Finding>& findings, const std::set<int>* ranks = nullptr) {
  return std::ranges::any_of(findings, [&](const incident::Finding& one) { return IsOfSlowRank(one, ranks); });
}

// A slow group stands for what all of its ranks take longer for, and its ranks for the rest. Beside a slow rank that is
// none of its own a group may be slow by that rank's doing, and is not named.
SlownessVerdict SlowRanksOrGroups(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds) {
  auto [groups, too_few] = FindSlowGroups(log, rounds, thresholds);
  SlowRanks ranks = FindSlowRanks(log, rounds, thresholds, {});
  if (IsAnySlow(ranks.findings)) {
    std::erase_if(groups, [&](const SlowGroup& group) { return !IsAnySlow(ranks.findings, &group.ranks); });
    std::vector<std::set<int>> members;
    for (const SlowGroup& group : groups) members.push_back(group.ranks);
    if (!groups.empty()) ranks = FindSlowRanks(log, rounds, thresholds, members);
  }
  std::vector<incident::Finding> findings;
  for (SlowGroup& group : groups) findings.push_back(std::move(group.finding));
  std::ranges::move(ranks.findings, std::back_inserter(findings));
  return {std::move(findings), too_few.empty() ? std::move(ranks.unsure) : std::move(too_few)};
}

// Where a rank is compared with other stages of its pipeline alone, collectives tell by themselves that it takes longer
// than they do, but not who waited for it in receives, nor that it should not.
void AddStages(SlowStages stages, SlownessVerdict& verdict) {
  std::erase_if(verdict.findings, [&](const incident::Finding& one) { return IsOfSlowRank(one, &stages.known); });
  for (incident::Finding& finding : verdict.findings)
    if (IsOfSlowRank(finding, &stages.ranks)) finding.certain = false;
  for (incident::Finding& stage : stages.findings)
    if (std::ranges::none_of(verdict.findings, [&](const incident::Finding& known) {
          return known.syndrome == stage.syndrome && known.suspects == stage.suspects;
        }))
      verdict.findings.push_back(std::move(stage));
  if (verdict.too_short.empty()) verdict.too_short = std::move(stages.unknown);
}

}  // namespace

SlownessVerdict JudgeSlowness(const trace::CommLog& log, const CommThresholds& thresholds) {
  Rounds rounds = RoundsOf(log, thresholds);
  const bool enough = AreEnough(rounds, thresholds);
  SlownessVerdict verdict;
  if (enough)
    verdict = SlowRanksOrGroups(log, rounds, thresholds);
  else
    verdict.too_short = TooFew(log, rounds, thresholds);
  std::string of_groups = enough ? std::exchange(verdict.too_short, "") : "";
  const Known known = KnownOf(log, rounds);
  if (enough) verdict.too_short = TooShort(rounds, known);
  AddStages(FindSlowStages(log, rounds, thresholds), verdict);
  if (!enough) rounds = WithoutCollectives(log, thresholds);
  SlowLinks links = FindSlowLinks(log, rounds, thresholds);
  for (incident::Finding& link : links.findings) link.price.at_least = link.price.at_least || !known.all;
  std::ranges::move(links.findings, std::back_inserter(verdict.findings));
  for (incident::Finding& finding : verdict.findings) finding.price.ranks = RanksOf(log);
  for (std::string* less : {&links.too_few, &of_groups})
    if (verdict.too_short.empty()) verdict.too_short = std::move(*less);
  return verdict;
}

}  // namespace lockstep::detect
