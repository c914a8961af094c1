// The service's end of one rank's ring of batches (client/feed_ring.h, docs/formats/feed.md): a sealed memfd of the
// user's own memory, not of /dev/shm. What the job writes into it is read only as "released" words and never trusted
// beyond that. Batches are filled by several threads at once, each its own items; everything else is one thread at a
// time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"
#include "lockstep/client/feed_ring.h"

namespace lockstep::feed {

struct RingShape {
  uint32_t slots = 4;
  uint32_t capacity = 0;    // items of a batch
  uint64_t item_bytes = 0;  // of one item
  bool operator==(const RingShape&) const = default;
};

// Where things lie in a slot, and what the whole takes.
uint32_t PayloadOffset(const RingShape& shape);
uint64_t SlotStride(const RingShape& shape);
uint64_t RingBytes(const RingShape& shape);
// Of a batch, from PayloadOffset on: its items, or why it has none.
uint64_t PayloadBytes(const RingShape& shape, const ls_feed_batch& batch);
// Of one ring more, where others take `used`. No limit (0): half of the machine's memory.
absl::Status CheckRingMemory(const RingShape& shape, uint64_t used, uint64_t limit);

// One slot, as the service writes it.
struct SlotView {
  ls_feed_batch* batch = nullptr;
  std::span<uint64_t> ids;
  std::span<int64_t> labels;
  std::byte* payload = nullptr;
};

class Ring {
 public:
  static absl::StatusOr<Ring> Create(const RingShape& shape);
  Ring(Ring&& other) noexcept;
  Ring& operator=(Ring&&) = delete;
  ~Ring();

  const RingShape& shape() const { return shape_; }
  // To pass to the job; the mapping stays when it is closed.
  Fd TakeFd() { return std::move(fd_); }
  // A slot that may be filled, if there is one. It is the caller's until it publishes it.
  std::optional<uint32_t> TakeFree();
  SlotView Slot(uint32_t slot) const;
  void Publish(uint32_t slot, uint64_t ticket);
  // From now on the job says when it releases a slot, once. Call TakeFree() again after this.
  void AskForSlot();
  // Batches that are filled and not released.
  uint32_t Held() const;
  // The same, and those that are being filled.
  uint32_t Outstanding() const;

 private:
  Ring(Fd fd, ls_feed_ring* ring, const RingShape& shape) : fd_(std::move(fd)), ring_(ring), shape_(shape) {}

  uint64_t Released(uint32_t slot) const;

  Fd fd_;
  ls_feed_ring* ring_;
  RingShape shape_;
  // What the service knows of each slot, whatever the job writes: ticket + 1 of the last batch, and whether it is being
  // filled.
  std::array<uint64_t, LS_FEED_MAX_SLOTS> filled_{};
  std::array<bool, LS_FEED_MAX_SLOTS> filling_{};
};

}  // namespace lockstep::feed
