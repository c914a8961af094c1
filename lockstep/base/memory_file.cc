#include "lockstep/base/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {

absl::StatusOr<Fd> MemoryFile(const std::string& name, std::string_view bytes) {
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.valid()) return Errno(errno, "memfd_create");
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t wrote = pwrite(fd.get(), bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    if (wrote < 0 && errno != EINTR) return Errno(errno, "memfd");
    if (wrote > 0) at += static_cast<size_t>(wrote);
  }
  return fd;
}

}  // namespace lockstep
