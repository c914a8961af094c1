// Parts of files by pread: what is not there is an error with the path, never a bus error.
#pragma once

#include <string>

#include "lockstep/base/file.h"
#include "lockstep/prepare/buffer.h"

namespace lockstep::prepare {

class PartReader {
 public:
  static absl::StatusOr<PartReader> Open(const std::string& path);

  uint64_t size() const { return size_; }  // when it was opened
  const std::string& path() const { return path_; }
  // All of `bytes`, or an error.
  absl::Status Read(uint64_t offset, std::span<uint8_t> bytes) const;

 private:
  PartReader(std::string path, Fd fd, uint64_t size) : path_(std::move(path)), fd_(std::move(fd)), size_(size) {}

  std::string path_;
  Fd fd_;
  uint64_t size_;
};

// A file whole; refused if it has more than kMaxItemBytes.
inline constexpr uint64_t kMaxItemBytes = uint64_t{1} << 30;
absl::Status ReadWhole(const std::string& path, Buffer& bytes);
absl::Status ReadPart(const std::string& path, uint64_t offset, uint64_t count, Buffer& bytes);

}  // namespace lockstep::prepare
