// The ranks of one run of a replay that live on this machine, from their start to the end of the last. What first goes
// wrong with one of them is the run's trouble: the others are killed then, for what follows from it tells nothing.
//
//   ReplayedRanks ranks({{"node b (rank 0 of its group)", "/run/rank0.log"}});
//   ranks.Began(pids, clock.Now());
//   while (!ranks.over()) { ... waitpid ... ranks.Ended(pid, status, clock.Now()); ranks.EndLate(deadline,
//   clock.Now()); }
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/agent/launch.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/report.h"

namespace lockstep::agent {

// Where a rank stands in its group, which is a torch.distributed world of its own.
struct ReplayPlace {
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // on its machine
  int index = 0, machines = 1;          // of its machine, in the group
  std::string master_host = "127.0.0.1";
  int master_port = 0;
};

// What torchrun would give it, and LOCKSTEP_REPLAY: `plan`, as python/lockstep/_replay.py reads it.
Environment ReplayEnvironment(const ReplayPlace& place, const Json& plan);

class ReplayedRanks {
 public:
  struct Rank {
    std::string name, log;  // log: the file that has its output
  };
  explicit ReplayedRanks(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {}

  // Their pids, in the same order.
  void Began(std::vector<pid_t> pids, Nanos now);
  // False: it is none of these.
  bool Ended(pid_t pid, int status, Nanos now);
  void EndLate(Seconds deadline, Nanos now);

  size_t count() const { return ranks_.size(); }
  bool over() const { return ended_.value != 0; }
  Seconds took() const { return ToSeconds(ended_ - began_); }
  const std::string& trouble() const { return trouble_; }  // empty: none
  Nanos troubled_at() const { return troubled_at_; }       // 0: not
  bool port_taken() const { return port_taken_; }  // the trouble: where ranks were to meet, somebody else listens

 private:
  void End(std::string trouble, Nanos now);

  std::vector<Rank> ranks_;
  std::vector<pid_t> pids_;  // 0: has ended
  Nanos began_, ended_, troubled_at_;
  std::string trouble_;
  bool port_taken_ = false;
};

}  // namespace lockstep::agent
