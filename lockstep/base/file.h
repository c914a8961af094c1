// Small files whole, and file descriptors that close themselves. Not for hot paths.
#pragma once

#include <string>
#include <utility>

#include "lockstep/base/status.h"

namespace lockstep {

// Owns a descriptor. Movable; -1 is "none".
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { Close(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read, write;
};
// Closed on exec. An error begins with `what`.
absl::StatusOr<Pipe> MakePipe(const std::string& what = "pipe");

// Makes a directory, and those above it, unless they are there.
absl::Status MakeDirectory(const std::string& path);

absl::StatusOr<std::string> ReadFile(const std::string& path);
// From where it stands; `what` is named in errors.
absl::StatusOr<std::string> ReadToEnd(int fd, const std::string& what);
inline constexpr int kOfOwner = 0600, kForReaders = 0644;  // who may read a file that is written
// Replaces the file by one rename, so a reader sees the old text or the new one whole.
absl::Status WriteFileAtomically(const std::string& path, std::string_view text, int mode = kOfOwner);

}  // namespace lockstep
