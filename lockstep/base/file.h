// Small files whole, and file descriptors that close themselves. Not for hot paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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
// How many of the bytes were read, or written, from `offset` on. Fewer than all: errno says why; 0: the file ends
// there.
size_t ReadAt(int fd, std::span<std::byte> bytes, uint64_t offset);
size_t WriteAt(int fd, std::span<const std::byte> bytes, uint64_t offset);
inline constexpr int kOfOwner = 0600, kForReaders = 0644;  // who may read a file that is written
// Replaces the file by one rename, so a reader sees the old text or the new one whole.
absl::Status WriteFileAtomically(const std::string& path, std::string_view text, int mode = kOfOwner);

}  // namespace lockstep
