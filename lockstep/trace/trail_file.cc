#include "lockstep/trace/trail_file.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/base/file.h"

namespace lockstep::trace {

absl::StatusOr<TrailFile> TrailFile::Open(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info{};
  if (!file.valid() || fstat(file.get(), &info) != 0) return InvalidArgument("{}: {}", path, strerror(errno));
  const auto bytes = static_cast<size_t>(info.st_size);
  TrailFile opened;
  void* memory = bytes == 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  if (memory != MAP_FAILED) {
    opened.memory_ = std::unique_ptr<void, Unmap>(memory, {bytes});
    opened.trail_ = ls_trail_attach(memory, bytes);
  }
  if (opened.trail_ == nullptr)
    return InvalidArgument("{}: no trail of this version, or one cut short ({} bytes)", path, bytes);
  return opened;
}

void TrailFile::Unmap::operator()(void* memory) const { munmap(memory, bytes); }

std::string TrailFile::host() const {
  return {trail_->origin.host, strnlen(trail_->origin.host, sizeof trail_->origin.host)};
}

bool TrailFile::IsAlive() const {
  std::array<char, sizeof trail_->origin.host> here{};
  gethostname(here.data(), here.size() - 1);
  const auto pid = static_cast<pid_t>(trail_->origin.pid);
  return pid > 0 && host() == here.data() && (kill(pid, 0) == 0 || errno == EPERM);
}

TrailRecords ReadRecords(const ls_trail& trail) {
  TrailRecords records;
  records.under_way.resize(LS_TRAIL_PLACES);
  records.under_way.resize(ls_trail_under_way(&trail, records.under_way.data()));
  std::array<ls_record, 256> batch;
  uint64_t at = 0;
  while (const size_t count = ls_trail_read(&trail, &at, &records.missed, batch.data(), batch.size()))
    records.ended.insert(records.ended.end(), batch.begin(), batch.begin() + static_cast<std::ptrdiff_t>(count));
  return records;
}

}  // namespace lockstep::trace
