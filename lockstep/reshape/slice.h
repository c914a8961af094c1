// A range of a file, read only inside of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/checkpoint/disk.h"

namespace lockstep::reshape {

struct Slice {
  checkpoint::Disk* disk = nullptr;  // not owned; never null
  std::string path;
  uint64_t begin = 0, bytes = 0;  // in the file

  // Does not overflow, whatever a file claims of itself.
  bool Holds(uint64_t offset, uint64_t count) const { return count <= bytes && offset <= bytes - count; }
  // kDataLoss if that leaves the slice.
  absl::Status Read(uint64_t offset, std::span<std::byte> data) const;
  absl::StatusOr<std::string> Text(uint64_t offset, uint64_t count) const;
};

// The whole of a file.
absl::StatusOr<Slice> WholeFile(checkpoint::Disk& disk, const std::string& path);

}  // namespace lockstep::reshape
