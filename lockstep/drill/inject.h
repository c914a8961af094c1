// Breaks one thing, now. Needs the rights of the run's owner; nothing else is touched than the target.
#pragma once

#include <sys/types.h>

#include "lockstep/agent/spec.h"
#include "lockstep/drill/fault.h"
#include "lockstep/drill/hold.h"

namespace lockstep::drill {

struct Target {
  uint64_t epoch = 0;
  pid_t worker = 0;   // of the fault's rank; of any rank where it strikes none
  pid_t watcher = 0;  // `lockstep run`
};

// The process that a fault strikes; 0: none.
absl::StatusOr<pid_t> VictimOf(const Fault& fault, const Target& target);
// What the fault leaves in force, or null.
absl::StatusOr<HoldPtr> Inject(const Fault& fault, const agent::RunSpec& spec, const Target& target, Nanos now);

}  // namespace lockstep::drill
