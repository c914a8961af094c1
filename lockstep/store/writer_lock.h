// The right to be the one writer of a journal: a POSIX record lock on a side file, which the kernel drops when the
// process dies, however it dies. A record lock and not flock, because a forked child that lives on (the starter, the
// zygote) would inherit a flock and keep a dead writer's. Invariant: record locks belong to the process and go when it
// closes any descriptor of the file, so this class never opens the file twice.
#pragma once

#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::store {

class WriterLock {
 public:
  // Fails with FailedPrecondition, naming the process that holds it.
  static absl::StatusOr<WriterLock> Take(const std::string& path);
  // The file that it was taken at is still there: whoever looks there finds it held.
  bool IsAt(const std::string& path) const;
  // FailedPrecondition: some process holds it, this one too; or it is there and can't be looked at, which counts as
  // held.
  static absl::Status CheckFree(const std::string& path);
  static bool IsHeld(const std::string& path) { return !CheckFree(path).ok(); }

 private:
  explicit WriterLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace lockstep::store
