// The runs of one round of a replay, counted: which groups have to run (again), and what was wrong with those that did.
// How they are run is the business of whoever asks: groups of processes of one machine (agent/local_groups.h), or of
// the nodes of a job (control/replay_search.h).
//
//   RoundOfRuns runs(round, votes, [](size_t group, int rank) { return "machine 3 (rank 1 of its group)"; });
//   for (std::vector<size_t> due; !(due = runs.Due()).empty();) LS_RETURN_IF_ERROR(runs.Take(RunOnce(due)));
//   testing.Observe(round, runs.outcomes());
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/detect/group_testing.h"
#include "lockstep/detect/replay_values.h"

namespace lockstep::detect {

// One run of one group, once it is over.
struct GroupRun {
  size_t group = 0;     // of the round
  std::string trouble;  // why it ended before its time, or did not end; empty: it ended well
  std::vector<ReplayValue> values;
  Seconds took;
};

// "machine 3 (rank 1 of its group)"
std::string ReplayedRankName(const std::string& machine, int rank);

class RoundOfRuns {
 public:
  using RankNamer = std::function<std::string(size_t group, int rank)>;
  // `votes`: of the whole search; outlives this.
  RoundOfRuns(ReplayRound round, ReplayVotes& votes, RankNamer name);

  const ReplayRound& round() const { return round_; }
  // Those that have to run now, all of them before the next question. Empty: the round is over.
  std::vector<size_t> Due() const;
  // One run of each of Due(). kFailedPrecondition: all groups of the first round fail in the same way, so it is what
  // they run and no machine.
  absl::Status Take(const std::vector<GroupRun>& runs);
  const std::vector<GroupOutcome>& outcomes() const { return outcomes_; }
  int repeats() const { return repeats_; }  // so far

 private:
  std::vector<std::string> Evidence(const GroupRun& run, const std::vector<Objection>& objections) const;

  const ReplayRound round_;
  ReplayVotes& votes_;
  const RankNamer name_;
  std::vector<GroupOutcome> outcomes_;
  int repeats_ = 0;
};

}  // namespace lockstep::detect
