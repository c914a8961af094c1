// The summary of a failed job, after the table of torchrun's ChildFailedError: which rank failed first, when, with
// which exit code and which message.
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/control/events.h"

namespace lockstep::node {

class FirstFailure {
 public:
  // A worker ended. `wall`: now; `at`: now, on the clock of event.exited. Exits of a newer epoch take the place of
  // older ones.
  void Add(const control::RankExited& event, int64_t pid, int restart_count, Nanos at, Nanos wall);
  // Several lines without a newline at the end; "" when no worker of this epoch failed. First is whom the verdict
  // blames, though it left with 0, if it is of this node; a rank that failed by itself goes before one that lost a
  // peer, then the earlier one leads.
  std::string Table(const agent::RunSpec& spec, EpochId epoch, const std::vector<RankId>& blamed) const;

 private:
  struct Exit {
    control::RankExited event;
    int64_t pid = 0;
    int restart_count = 0;
    Nanos wall;
  };
  const Exit* First(const std::vector<RankId>& blamed) const;

  std::vector<Exit> exits_;  // of the newest epoch
};

}  // namespace lockstep::node
