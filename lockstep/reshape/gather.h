// Puts any box of a tensor together out of the shards that hold parts of it, one shard at a time. Where its archive has
// a sum, the storage of a shard is read whole and compared once; otherwise, and from then on, no more of it is read
// than lies between the first and the last element that are wanted. Thread-compatible.
//
//   Gatherer gather(disk, saved);
//   LS_RETURN_IF_ERROR(gather.Read(tensor, box, bytes));
#pragma once

#include <functional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

// Copies `count` elements along each dimension between two memories whose strides are in elements.
void CopyBox(const std::byte* from, std::span<const uint64_t> from_strides, std::byte* to,
             std::span<const uint64_t> to_strides, std::span<const uint64_t> count, uint64_t element_bytes);

class Gatherer {
 public:
  Gatherer(checkpoint::Disk& disk, const Saved& saved) : disk_(disk), saved_(saved) {}

  // Writes the box, in C order, into `out`, which is as large. Of copies the first is taken. An error if no shard has
  // some of it, if two overlap, or if a sum is wrong.
  absl::Status Read(const SavedTensor& tensor, const Box& box, std::span<std::byte> out);
  uint64_t bytes_read() const { return bytes_read_; }

 private:
  // Of the storage of a shard, `bytes` from `begin` on.
  absl::StatusOr<std::vector<std::byte>> ReadStorage(const Shard& shard, uint64_t begin, uint64_t bytes);

  checkpoint::Disk& disk_;
  const Saved& saved_;
  std::set<std::pair<std::string, uint64_t>> compared_;  // storages whose sum was right: file, place
  uint64_t bytes_read_ = 0;
};

}  // namespace lockstep::reshape
