// Another program, run to its end: arguments as they are, no shell, and a time limit after which it is killed with all
// that it has started. It is a process group of its own, which no signal of a terminal reaches, and what it leaves
// behind when it ends is killed. Blocks; for a thread that may wait.
//
//   LS_ASSIGN_OR_RETURN(const ChildEnd end, RunChild({"scontrol", "ping"}, {.at_most = Seconds{5}}, stop));
//   if (end.code != 0) return Unavailable("scontrol ping: {}", end.err);
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep {

inline constexpr int kHandedOver = 3;

struct ChildOptions {
  Seconds at_most{20};
  std::string input{};                     // on its standard input
  std::vector<std::string> environment{};  // NAME=VALUE; empty: ours
  bool takes_signals = true;               // false: one that ends us does not end it
  int hands_over = -1;                     // of ours, which it has as kHandedOver; -1: none
};

struct ChildEnd {
  int code = 0;    // its exit status
  int signal = 0;  // that killed it; then code says nothing
  std::string out, err;
};

// argv[0]: a path, or a name to be found in PATH. What it writes beyond 16 MiB is dropped. kNotFound: there is no such
// program; kDeadlineExceeded: it was killed after `at_most`; kCancelled: it was, as asked.
absl::StatusOr<ChildEnd> RunChild(const std::vector<std::string>& argv, const ChildOptions& options = {},
                                  const std::stop_token& stop = {});

// "who died of signal 9 (Killed)" or "who ended with status 1: " and the begin of what it wrote to standard error.
std::string HowItEnded(const std::string& who, const ChildEnd& end);

// The path of the program that runs, to start it once more.
absl::StatusOr<std::string> OwnBinary();

}  // namespace lockstep
