// How items are made: what a worker thread of the service calls, one object for each thread. The real one is in
// data_set.h; tests have one that counts.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "lockstep/base/status.h"
#include "lockstep/prepare/preparer.h"

namespace lockstep::feed {

class Maker {
 public:
  // Bytes that a maker keeps between items and takes without asking, together; an item that takes more than kUnasked is
  // asked for.
  static constexpr uint64_t kOwn = 3 << 20, kUnasked = 1 << 20;

  virtual ~Maker() = default;
  // What Read will allocate; 0: nobody knows.
  virtual uint64_t FileBytes(uint64_t /*item*/) const { return 0; }
  virtual absl::Status Read(uint64_t item, prepare::Buffer& file) = 0;
  // What Decode will allocate (`whole`, of which the image is `kept`), and Prepare (`by_rows`). An error: the item is
  // corrupt, whatever is wanted of it.
  virtual absl::StatusOr<prepare::DecodeMemory> MemoryFor(prepare::Bytes file) = 0;
  virtual absl::Status Decode(prepare::Bytes file, prepare::Image& image) = 0;
  virtual absl::Status Cut(const prepare::Image& image, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                           std::span<uint8_t> out) = 0;
  // The same bytes as Decode and Cut. An error: this can't be made of the item. Damage that lies elsewhere in the file
  // may be an error of Decode alone.
  virtual absl::Status Prepare(prepare::Bytes file, const prepare::Recipe& recipe, const prepare::AugmentKey& key,
                               std::span<uint8_t> out) = 0;
  // What happened since it was last asked.
  virtual prepare::PrepareCounters TakeCounters() { return {}; }
};

}  // namespace lockstep::feed
