// Replays a job on groups of machines that are groups of processes of this one: for a script that is to be tried out,
// or a machine whose accelerators are the suspects. Each group is a torch.distributed world of its own, with the
// environment that torchrun gives. As many groups run at once as `ranks_at_once` allows, one at least; a group that is
// not done within its deadline is killed. A run fails in which a rank leaves with an error or is late, or reports a
// value (replay_values.h) that is no number or differs from others'.
//
//   LocalGroups groups(std::move(replay));
//   LS_ASSIGN_OR_RETURN(const detect::GroupTestResult result, detect::FindBadMachines(grid, odds, limits, groups));
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/agent/rank_host.h"
#include "lockstep/agent/replayed_ranks.h"
#include "lockstep/base/clock.h"
#include "lockstep/detect/replay_runs.h"

namespace lockstep::agent {

struct LocalReplay {
  RankProgram program;
  int ranks_per_machine = 1;
  int layers = 4, steps = 3;  // what the script is asked to shrink to
  Seconds deadline{60};       // of one run of a group
  int ranks_at_once = 1;
  std::string folder;                       // for logs and reports; exists
  std::function<bool()> interrupted{};      // asked all the time; true ends the replay
  std::function<void(std::string)> note{};  // how far it is, a line now and then
};

class LocalGroups final : public detect::GroupRunner {
 public:
  explicit LocalGroups(LocalReplay replay);
  // kFailedPrecondition: all groups fail in the same way, which is the script's doing. kCancelled: interrupted.
  absl::StatusOr<std::vector<detect::GroupOutcome>> RunRound(const detect::ReplayRound& round) override;
  // After all rounds: what their verdict does not rest on. Empty: it rests on values, too.
  std::string note() const;

 private:
  // One run of one group.
  struct Run {
    size_t group = 0;  // of the round
    detect::Machines machines;
    ReplayedRanks ranks;
  };

  Run RunOf(const detect::ReplayRound& round, size_t group) const;
  std::string FileOf(size_t group, int rank, const char* suffix) const;
  std::string NameOf(const detect::Machines& machines, int rank) const;
  RankStart StartOf(const Run& run, int rank, int port) const;
  absl::StatusOr<std::vector<detect::GroupRun>> RunOnce(const detect::ReplayRound& round,
                                                        const std::vector<size_t>& due);
  absl::Status Begin(std::span<Run> wave);
  absl::Status Await(std::span<Run> wave);
  void Reap(std::span<Run> wave);
  absl::StatusOr<detect::GroupRun> Outcome(const Run& run);

  LocalReplay replay_;
  RankHost host_;
  SystemClock clock_;
  detect::ReplayVotes votes_;
  int runs_ = 0;  // so far
  bool any_calls_replay_ = false, any_values_ = false;
};

}  // namespace lockstep::agent
