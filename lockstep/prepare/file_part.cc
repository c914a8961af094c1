#include "lockstep/prepare/file_part.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::prepare {

absl::StatusOr<PartReader> PartReader::Open(const std::string& path) {
  // Not blocking: a named pipe must not hold us.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Errno(errno, "{}", path);
  struct stat about{};
  if (fstat(fd.get(), &about) != 0) return Errno(errno, "{}", path);
  if (!S_ISREG(about.st_mode)) return InvalidArgument("{}: expected a regular file", path);
  return PartReader(path, std::move(fd), static_cast<uint64_t>(about.st_size));
}

absl::Status PartReader::Read(uint64_t offset, std::span<uint8_t> bytes) const {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(fd_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Errno(errno, "{}", path_);
    if (got == 0)
      return DataLoss(
          "{}: it ends before byte {}: expected {} bytes from {} on (was it cut short since it was opened?)", path_,
          offset + done, bytes.size(), offset);
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status ReadWhole(const std::string& path, Buffer& bytes) {
  LS_ASSIGN_OR_RETURN(const PartReader file, PartReader::Open(path));
  if (file.size() > kMaxItemBytes)
    return MakeError(absl::StatusCode::kResourceExhausted,
                     fmt::format("{}: {} bytes: the limit of an item is {}", path, file.size(), kMaxItemBytes));
  bytes.Resize(file.size());
  return file.Read(0, {bytes.data(), bytes.size()});
}

absl::Status ReadPart(const std::string& path, uint64_t offset, uint64_t count, Buffer& bytes) {
  LS_ASSIGN_OR_RETURN(const PartReader file, PartReader::Open(path));
  bytes.Resize(count);
  return file.Read(offset, {bytes.data(), bytes.size()});
}

}  // namespace lockstep::prepare
