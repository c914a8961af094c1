// One process, held by a pidfd: a signal reaches it or nobody, never a later process of the same number.
#pragma once

#include <sys/types.h>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::drill {

class Process {
 public:
  // NotFound: there is none.
  static absl::StatusOr<Process> Open(pid_t pid);
  pid_t pid() const { return pid_; }
  bool Alive() const;
  absl::Status Signal(int signal) const;
  // Whether the process has a handler for the signal; one without would die of it.
  bool Handles(int signal) const;

 private:
  Process(pid_t pid, Fd fd) : pid_(pid), fd_(std::move(fd)) {}
  pid_t pid_;
  Fd fd_;
};

// The starter of a worker: its parent, if it is one; NotFound otherwise.
absl::StatusOr<pid_t> StarterOf(pid_t worker);

}  // namespace lockstep::drill
