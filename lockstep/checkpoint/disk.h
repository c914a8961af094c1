// The few file operations that a checkpoint on disk is made of, so that a test can stand in for the disk and fail, or
// lose what was not synced. Paths are absolute. Errors name the path. A disk may be used by one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::checkpoint {

// As much of a file is read or written at once.
inline constexpr size_t kPiece = 4 << 20;

// Asked between pieces of long work; false: give it up.
using GoOn = std::function<bool()>;

// A file being written. Closed, not synced, on destruction.
class DiskFile {
 public:
  virtual ~DiskFile() = default;
  virtual absl::Status Append(std::span<const std::byte> data) = 0;
  virtual absl::Status Sync() = 0;
};

class Disk {
 public:
  virtual ~Disk() = default;
  // One that is there is as good.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  virtual absl::StatusOr<std::unique_ptr<DiskFile>> Create(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Of a link, the link.
  virtual absl::Status RemoveFile(const std::string& path) = 0;
  virtual absl::Status RemoveDirectory(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // A link to one is none.
  virtual bool IsDirectory(const std::string& path) = 0;
  // Names, in any order, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  virtual absl::StatusOr<uint64_t> Size(const std::string& path) = 0;
  // All of `data`; a shorter file is an error.
  virtual absl::Status Read(const std::string& path, uint64_t offset, std::span<std::byte> data) = 0;
};

// The real one. Leaves nothing of large files in the page cache: that memory is the job's.
std::unique_ptr<Disk> PosixDisk();

}  // namespace lockstep::checkpoint
