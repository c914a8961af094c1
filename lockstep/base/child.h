// Another program, run to its end in a process group of its own: no signal of a terminal reaches it, and it inherits no
// blocked signals. It reads nothing. Blocks; for a thread that may wait.
//
//   LS_ASSIGN_OR_RETURN(const ChildEnd end, RunChild({"/usr/bin/scontrol", "ping"}, Seconds{5}, stop));
//   if (end.code != 0) return Unavailable("scontrol ping: {}", end.err);
#pragma once

#include <sys/types.h>

#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep {

struct ChildEnd {
  int code = 0;    // its exit status
  int signal = 0;  // that killed it; then code says nothing
  std::string out, err;
};

// argv[0]: a path, or a name to be found in PATH. What it writes beyond 16 MiB is dropped. kNotFound: there is no such
// program; kDeadlineExceeded: it was killed, with all of its group, after `at_most`; kCancelled: it was, as asked.
absl::StatusOr<ChildEnd> RunChild(const std::vector<std::string>& argv, Seconds at_most, const std::stop_token& stop);

}  // namespace lockstep
