#include "lockstep/detect/comm_slow.h"

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

}  // namespace

std::vector<incident::Finding> FindSlowness(const trace::CommLog& log, const CommThresholds& thresholds) {
  const Rounds rounds = NewestRounds(log, thresholds);
  if (rounds.all.size() < thresholds.window_ops ||
      rounds.length_ns() < std::max<int64_t>(1, ToNanos(thresholds.least).value))
    return {};
  std::vector<incident::Finding> findings = FindSlowRanks(log, rounds, thresholds);
  std::vector<incident::Finding> links = FindSlowLinks(log, rounds, thresholds);
  std::move(links.begin(), links.end(), std::back_inserter(findings));
  for (incident::Finding& finding : findings) finding.price.ranks = RanksOf(log);
  return findings;
}

}  // namespace lockstep::detect
