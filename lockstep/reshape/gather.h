// Puts any box of a tensor together out of the shards that hold parts of it. Shards are read whole, one at a time, and
// where their archive has a sum it is compared.
#pragma once

#include <functional>
#include <span>

#include "lockstep/checkpoint/disk.h"
#include "lockstep/reshape/saved.h"

namespace lockstep::reshape {

// Copies `count` elements along each dimension between two memories whose strides are in elements.
void CopyBox(const std::byte* from, std::span<const uint64_t> from_strides, std::byte* to,
             std::span<const uint64_t> to_strides, std::span<const uint64_t> count, uint64_t element_bytes);

// Writes the box, in C order, into `out`, which is as large. Of copies the first is taken. An error if no shard has
// some of it, if two overlap, or if a sum is wrong.
absl::Status Gather(checkpoint::Disk& disk, const Saved& saved, const SavedTensor& tensor, const Box& box,
                    std::span<std::byte> out);

}  // namespace lockstep::reshape
