// What the kernel says about a worker, from /proc and the cgroup file systems. Needs no right beyond owning the
// process; what is not readable stays 0. A process that is gone is no error: its state is kGone. Thread rule: const
// after construction. Cost (2-core VM, 107 processes): SampleCheap 6 to 30 us, SampleFull 0.3 to 1 ms (it looks through
// all of /proc).
//
//   detect::RankSample sample;                       // rank, time and steps are the caller's
//   if (SampleCheap(pid, sample)) detector.Add(sample);
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/detect/hang.h"

namespace lockstep::agent {

class ProcFs {
 public:
  // Reads the mount points of the cgroup file systems once. `root` is a fake tree in tests.
  explicit ProcFs(std::string root = "/proc");
  // The one of this machine.
  static const ProcFs& System();

  // Fills in state, traced and frozen. False: our own stack reader holds the process at this moment, so its state is
  // not its own and the sample should be dropped.
  bool SampleCheap(pid_t pid, detect::RankSample& sample) const;
  // ... and the counters.
  bool SampleFull(pid_t pid, detect::RankSample& sample) const;

  // The status that wait(2) will tell of a process that has begun to end other than well; nullopt if it runs on, ends
  // well, or the kernel does not say yet (before Linux 5.17 it may not).
  std::optional<int> FailureBegun(pid_t pid) const;

  std::vector<pid_t> Children(pid_t pid) const;
  // Of all these, by one look at all processes. None of them is in the answer, unless it is below another.
  std::vector<pid_t> Descendants(std::vector<pid_t> pids) const;
  // The files under /dev/shm that a process has mapped or open, sorted; names already unlinked are left out.
  std::vector<std::string> MappedShm(pid_t pid) const;
  // Whether a process that we may look at has `path` mapped or open.
  bool MappedByAnyone(const std::string& path) const;

 private:
  std::vector<pid_t> Pids() const;
  bool Frozen(pid_t pid) const;
  bool TracedByUs(pid_t tracer) const;

  std::string root_, freezer_mount_, unified_mount_;
};

inline bool SampleCheap(pid_t pid, detect::RankSample& sample) { return ProcFs::System().SampleCheap(pid, sample); }
inline bool SampleFull(pid_t pid, detect::RankSample& sample) { return ProcFs::System().SampleFull(pid, sample); }
inline std::optional<int> FailureBegun(pid_t pid) { return ProcFs::System().FailureBegun(pid); }
inline std::vector<pid_t> Children(pid_t pid) { return ProcFs::System().Children(pid); }
inline std::vector<pid_t> Descendants(std::vector<pid_t> pids) { return ProcFs::System().Descendants(std::move(pids)); }
inline std::vector<std::string> MappedShm(pid_t pid) { return ProcFs::System().MappedShm(pid); }
inline bool MappedByAnyone(const std::string& path) { return ProcFs::System().MappedByAnyone(path); }

}  // namespace lockstep::agent
