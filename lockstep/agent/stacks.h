// Where every thread of a process is: native frames by elfutils under ptrace; python_stacks.h adds the Python ones.
// Bounded in time whatever the process does: a stopped one is read as it is and stays stopped; one that is frozen or
// that we may not trace gives what /proc still tells, and the reason.
// Invariant: nothing is left stopped or traced, also when the reader is killed, for it lives in a process of its own
// (native_stacks.h). Cost: 4 torch workers in about 45 ms (2-core VM); each stands still for 0.8 ms of it.
//
//   StackDump dump = *CollectNative(pid, "/usr/bin/lockstep", Seconds{2});
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "lockstep/agent/python_stacks.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::agent {

// What ends the wait of a thread.
enum class Wait {
  kUnknown,
  kRunning,   // in no system call
  kTimed,     // it ends by itself
  kExternal,  // a file, pipe, socket or process: somebody outside may end it
  kForever,   // a private futex without a timeout, pause(): only another thread of the same process, or a signal, ends
              // it
};

struct ThreadStack {
  pid_t tid = 0;
  std::string comm;
  char state = '?';      // as in /proc/PID/stat, before we looked
  int64_t syscall = -1;  // -1 = none or unreadable
  std::string syscall_name;
  Wait wait = Wait::kUnknown;
  std::string wchan;  // kernel function in which it sleeps; empty = unknown
  // Innermost first: "symbol (module)", or "module+0x1234" where no symbol covers the address.
  std::vector<std::string> frames;
};

struct StackDump {
  pid_t pid = 0;
  std::vector<ThreadStack> threads;  // the main thread first
  std::string unreadable;            // why frames are missing; empty = none are
};

Json ToJson(const StackDump& dump);
absl::StatusOr<StackDump> StackDumpFromJson(const Json& json);

// Prints the StackDump of `pid` as JSON: the hidden subcommand `lockstep stacks PID`, whose exit status it returns.
int StacksMain(pid_t pid);

// Runs `lockstep stacks PID` for all pids at once and waits at most `timeout` for all of them. One answer per pid, in
// order.
std::vector<absl::StatusOr<StackDump>> CollectNative(std::span<const pid_t> pids, const std::string& lockstep_binary,
                                                     Seconds timeout);
absl::StatusOr<StackDump> CollectNative(pid_t pid, const std::string& lockstep_binary, Seconds timeout);

}  // namespace lockstep::agent
