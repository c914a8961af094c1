// How items are made: what a worker thread of the service calls, one object for each thread. The real one is in
// data_set.h; tests have one that counts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/status.h"
#include "lockstep/prepare/image.h"
#include "lockstep/prepare/recipe.h"

namespace lockstep::feed {

class Maker {
 public:
  // Bytes of pixels. What a maker of its own needs for an item up to here it may keep; for a larger one it lets go.
  static constexpr uint64_t kLarge = 4 << 20;

  virtual ~Maker() = default;
  virtual absl::Status Read(uint64_t item, prepare::Buffer& file) = 0;
  // What Decode will allocate. An error of this, or of the three below, is the item's: it is corrupt.
  virtual absl::StatusOr<uint64_t> DecodedBytes(prepare::Bytes file) = 0;
  virtual absl::Status Decode(prepare::Bytes file, prepare::Image& image) = 0;
  virtual absl::Status Cut(const prepare::Image& image, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                           std::span<uint8_t> out) = 0;
  // The same bytes as Decode and Cut, and corrupt for the same files; allocates little.
  virtual absl::Status Prepare(prepare::Bytes file, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                               std::span<uint8_t> out) = 0;
};

}  // namespace lockstep::feed
