#include "lockstep/base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace lockstep {

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Fd::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? ErrnoError(error.value(), path) : absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return Errno(errno, "{}", path);
  return ReadToEnd(fd.get(), path);
}

absl::StatusOr<std::string> ReadToEnd(int fd, const std::string& what) {
  std::string text;
  std::array<char, 16384> chunk{};
  for (;;) {
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got == 0) return text;
    if (got > 0) {
      text.append(chunk.data(), static_cast<size_t>(got));
    } else if (errno != EINTR) {
      return Errno(errno, "{}", what);
    }
  }
}

size_t ReadAt(int fd, std::span<std::byte> bytes, uint64_t offset) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t got = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = 0;
    if (got <= 0) return done;
    done += static_cast<size_t>(got);
  }
  return bytes.size();
}

size_t WriteAt(int fd, std::span<const std::byte> bytes, uint64_t offset) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote == 0) errno = ENOSPC;
    if (wrote <= 0) return done;
    done += static_cast<size_t>(wrote);
  }
  return bytes.size();
}

absl::StatusOr<Pipe> MakePipe(const std::string& what) {
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return Errno(errno, "{}", what);
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view text, int mode) {
  const std::string next = path + ".next";
  {
    Fd fd(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd.valid()) return Errno(errno, "{}", next);
    while (!text.empty()) {
      const ssize_t wrote = write(fd.get(), text.data(), text.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) {
        const int error = errno;
        unlink(next.c_str());
        return Errno(error, "{}", next);
      }
      text.remove_prefix(static_cast<size_t>(wrote));
    }
  }
  if (rename(next.c_str(), path.c_str()) != 0) return Errno(errno, "{}", path);
  return absl::OkStatus();
}

}  // namespace lockstep
