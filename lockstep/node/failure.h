// The summary of a failed job, after the table of torchrun's ChildFailedError: which rank failed first, when, with
// which exit code and which message.
#pragma once

#include <optional>
#include <string>

#include "lockstep/agent/spec.h"
#include "lockstep/control/events.h"

namespace lockstep::node {

class FirstFailure {
 public:
  // A worker ended. `wall`: now; `at`: now, on the clock of event.exited. Exits of a newer epoch take the place of
  // older ones; a rank that failed by itself goes before one that lost a peer, then the earlier one leads.
  void Add(const control::RankExited& event, int64_t pid, int restart_count, Nanos at, Nanos wall);
  // Several lines without a newline at the end; "" when no worker of this epoch failed.
  std::string Table(const agent::RunSpec& spec, EpochId epoch) const;

 private:
  struct Failure {
    control::RankExited event;
    int64_t pid = 0;
    int restart_count = 0;
    Nanos wall;
  };
  std::optional<Failure> first_;
};

}  // namespace lockstep::node
