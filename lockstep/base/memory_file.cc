#include "lockstep/base/memory_file.h"

#include <sys/mman.h>

#include <cerrno>

namespace lockstep {

absl::StatusOr<Fd> MemoryFile(const std::string& name, std::string_view bytes) {
  Fd fd(memfd_create(name.c_str(), MFD_CLOEXEC));
  if (!fd.valid()) return Errno(errno, "memfd_create");
  if (WriteAt(fd.get(), std::as_bytes(std::span(bytes)), 0) < bytes.size()) return Errno(errno, "memfd");
  return fd;
}

}  // namespace lockstep
