// What a fault leaves in force. A Hold ends by itself when its time is over or its process is gone; its destructor
// undoes it, so nothing stays behind, whatever ends the drill (save SIGKILL; docs/drill.md says what then).
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/checkpoint/budget.h"
#include "lockstep/drill/group.h"
#include "lockstep/drill/process.h"

namespace lockstep::drill {

class Hold {
 public:
  virtual ~Hold() = default;
  // Called every few milliseconds. False: it is over, and may be destroyed.
  virtual bool GoesOn(Nanos now) = 0;
  // Why it did not come to what it was meant for; empty: it did.
  virtual std::string Failure() const { return ""; }
  // False: over, and it never struck.
  virtual bool Struck() const { return true; }
};
using HoldPtr = std::unique_ptr<Hold>;

// SIGSTOP now, SIGCONT at the end.
absl::StatusOr<HoldPtr> HoldStopped(Process process, Nanos until);
absl::StatusOr<HoldPtr> HoldFrozen(Process process, Nanos until);
// By a CPU quota where we may make one; else by SIGSTOP and SIGCONT: it runs for 20 ms, and stands still until these
// were `share` percent of the time.
absl::StatusOr<HoldPtr> HoldSlow(Process process, int share, Nanos until);
// All links of the network namespace that the process is in are down, but loopback. Lasts beyond the process.
absl::StatusOr<HoldPtr> HoldCutOff(const Process& process, Nanos until);
// What HoldDisk would refuse: a disk with no more than `margin` free, and one that is memory (tmpfs) where filling it
// would take more than half of what this process can have.
absl::Status CheckDisk(const std::string& directory, Bytes margin, const checkpoint::MemoryRoots& roots = {});
// An unlinked file takes all space of the file system but `margin`: the kernel gives it back with our last breath.
absl::StatusOr<HoldPtr> HoldDisk(const std::string& directory, Bytes margin, Nanos until);
// A request to the worker: writes the file and sends the signal. Over when the worker has taken the file away, failed
// when it has not by `until`.
absl::StatusOr<HoldPtr> AskWorker(Process process, const std::string& path, const std::string& request, Nanos until);

}  // namespace lockstep::drill
