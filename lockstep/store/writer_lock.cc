#include "lockstep/store/writer_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace lockstep::store {
namespace {

// A record lock does not keep its own process out; an open descriptor of the file tells that this process has it
// already.
bool HeldByThisProcess(const std::string& path) {
  struct stat wanted{};
  if (stat(path.c_str(), &wanted) != 0) return false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    struct stat open{};
    if (stat(entry.path().c_str(), &open) == 0 && open.st_dev == wanted.st_dev && open.st_ino == wanted.st_ino)
      return true;
  }
  return false;
}

struct flock WholeFile() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

absl::Status HeldBy(const std::string& path, pid_t pid) {
  return FailedPrecondition("{} is held by process {}, which is writing there: stop it first, or read only", path, pid);
}

}  // namespace

absl::StatusOr<WriterLock> WriterLock::Take(const std::string& path) {
  if (HeldByThisProcess(path)) return HeldBy(path, getpid());
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return Errno(errno, "cannot open {}", path);
  struct flock lock = WholeFile();
  if (fcntl(fd.get(), F_SETLK, &lock) == 0) return WriterLock(std::move(fd));
  if (errno != EACCES && errno != EAGAIN) return Errno(errno, "cannot lock {}", path);
  struct flock holder = WholeFile();
  fcntl(fd.get(), F_GETLK, &holder);
  return HeldBy(path, holder.l_pid);
}

bool WriterLock::IsAt(const std::string& path) const {
  struct stat there{}, ours{};
  return stat(path.c_str(), &there) == 0 && fstat(fd_.get(), &ours) == 0 && there.st_dev == ours.st_dev &&
         there.st_ino == ours.st_ino;
}

absl::Status WriterLock::CheckFree(const std::string& path) {
  if (HeldByThisProcess(path)) return HeldBy(path, getpid());
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && (errno == ENOENT || errno == ENOTDIR)) return absl::OkStatus();
  if (!fd.valid())
    return FailedPrecondition("{} can't be opened ({}), and may be held by a process of another user", path,
                              std::strerror(errno));
  struct flock holder = WholeFile();
  if (fcntl(fd.get(), F_GETLK, &holder) == 0 && holder.l_type != F_UNLCK) return HeldBy(path, holder.l_pid);
  return absl::OkStatus();
}

}  // namespace lockstep::store
