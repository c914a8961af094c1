#include "lockstep/detect/comm_slow.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/detect/slow_link.h"
#include "lockstep/detect/slow_rank.h"

namespace lockstep::detect {
namespace {

int RanksOf(const trace::CommLog& log) {
  size_t ranks = log.reported.size();  // those that say nothing lose the same
  for (const trace::Communicator& communicator : log.communicators) ranks = std::max(ranks, communicator.ranks.size());
  return static_cast<int>(ranks);
}

bool AreEnough(const Rounds& rounds, const CommThresholds& thresholds) {
  return rounds.all.size() >= thresholds.window_ops &&
         rounds.length_ns() >= std::max<int64_t>(1, ToNanos(thresholds.least).value);
}

}  // namespace

std::vector<incident::Finding> FindSlowness(const trace::CommLog& log, const CommThresholds& thresholds) {
  const Rounds rounds = NewestRounds(log, thresholds);
  if (!AreEnough(rounds, thresholds)) return {};
  std::vector<incident::Finding> findings = FindSlowRanks(log, rounds, thresholds);
  std::vector<incident::Finding> links = FindSlowLinks(log, rounds, thresholds);
  std::move(links.begin(), links.end(), std::back_inserter(findings));
  for (incident::Finding& finding : findings) finding.price.ranks = RanksOf(log);
  return findings;
}

std::string TooShortToTell(const trace::CommLog& log, const CommThresholds& thresholds) {
  const Rounds rounds = NewestRounds(log, thresholds);
  if (rounds.all.empty()) return "";
  const double seconds = ToSeconds(Nanos{rounds.length_ns()}).value;
  if (!AreEnough(rounds, thresholds))
    return fmt::format(
        "{} collectives that all members ended, in {:.1f} s: whether anybody is slow can't be told of fewer "
        "than {}, nor of less than {:.3g} s",
        rounds.all.size(), seconds, thresholds.window_ops, thresholds.least.value);
  if (rounds.share >= 1) return "";
  return fmt::format(
      "collectives of {:.0f} s: ranks are by themselves for so long between two that whether anybody is "
      "slow can't be told of less than {:.0f} s",
      seconds, seconds / rounds.share);
}

}  // namespace lockstep::detect
