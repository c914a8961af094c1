#include "lockstep/feed/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::feed {
namespace {

constexpr uint64_t Aligned(uint64_t bytes) { return (bytes + LS_FEED_ALIGN - 1) / LS_FEED_ALIGN * LS_FEED_ALIGN; }

absl::StatusOr<Fd> MakeMemory(uint64_t bytes) {
  Fd fd(memfd_create("lockstep-feed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return Errno(errno, "memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return Errno(errno, "a ring of {} bytes", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return Errno(errno, "sealing a ring");
  return fd;
}

uint64_t HalfOfMemory() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

}  // namespace

uint32_t PayloadOffset(const RingShape& shape) {
  const uint64_t tables = uint64_t{shape.capacity} * (sizeof(uint64_t) + sizeof(int64_t));
  return static_cast<uint32_t>(Aligned(sizeof(ls_feed_batch) + tables));
}

uint64_t SlotStride(const RingShape& shape) {
  return PayloadOffset(shape) + Aligned(shape.capacity * shape.item_bytes);
}

uint64_t RingBytes(const RingShape& shape) { return LS_FEED_ALIGN + shape.slots * SlotStride(shape); }

uint64_t PayloadBytes(const RingShape& shape, const ls_feed_batch& batch) {
  return batch.items * shape.item_bytes + batch.why_bytes;
}

absl::Status CheckRingMemory(const RingShape& shape, uint64_t used, uint64_t limit) {
  if (limit == 0) limit = HalfOfMemory();
  if (used + RingBytes(shape) <= limit) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted,
                   fmt::format("batches of all jobs: {} MB are in use, this rank's {} x {} would be {} MB more, and {} "
                               "MB are allowed; take a smaller batch or prefetch, or raise --ring-memory",
                               used >> 20, shape.slots, SlotStride(shape), RingBytes(shape) >> 20, limit >> 20));
}

absl::StatusOr<Ring> Ring::Create(const RingShape& shape) {
  LS_CHECK(shape.slots >= 1 && shape.slots <= LS_FEED_MAX_SLOTS, "{} slots", shape.slots);
  LS_ASSIGN_OR_RETURN(Fd fd, MakeMemory(RingBytes(shape)));
  void* memory = mmap(nullptr, RingBytes(shape), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return Errno(errno, "mapping a ring of {} bytes", RingBytes(shape));
  auto* ring = static_cast<ls_feed_ring*>(memory);
  ring->magic = LS_FEED_MAGIC;
  ring->version = LS_FEED_VERSION;
  ring->slots = shape.slots;
  ring->slot_stride = SlotStride(shape);
  ring->item_bytes = shape.item_bytes;
  ring->capacity = shape.capacity;
  ring->payload_offset = PayloadOffset(shape);
  return Ring(std::move(fd), ring, shape);
}

Ring::Ring(Ring&& other) noexcept
    : fd_(std::move(other.fd_)), ring_(std::exchange(other.ring_, nullptr)), shape_(other.shape_) {}

Ring::~Ring() {
  if (ring_ != nullptr) munmap(ring_, RingBytes(shape_));
}

std::optional<uint32_t> Ring::TakeFree() {
  for (uint32_t slot = 0; slot < shape_.slots; ++slot) {
    if (filling_.at(slot) || Released(slot) != filled_.at(slot)) continue;
    filling_.at(slot) = true;
    return slot;
  }
  return std::nullopt;
}

uint64_t Ring::Released(uint32_t slot) const { return __atomic_load_n(&ring_->slot[slot].released, __ATOMIC_ACQUIRE); }

void Ring::Publish(uint32_t slot, uint64_t ticket) {
  filled_.at(slot) = ticket + 1;
  filling_.at(slot) = false;
  ls_feed_publish(ring_, slot, ticket);
}

SlotView Ring::Slot(uint32_t index) const {
  std::byte* slot = reinterpret_cast<std::byte*>(ring_) + LS_FEED_ALIGN + index * SlotStride(shape_);
  auto* ids = reinterpret_cast<uint64_t*>(slot + sizeof(ls_feed_batch));
  auto* labels = reinterpret_cast<int64_t*>(ids + shape_.capacity);
  return {reinterpret_cast<ls_feed_batch*>(slot),
          {ids, shape_.capacity},
          {labels, shape_.capacity},
          slot + PayloadOffset(shape_)};
}

void Ring::AskForSlot() { __atomic_store_n(&ring_->starving, 1, __ATOMIC_SEQ_CST); }

uint32_t Ring::Outstanding() const {
  uint32_t outstanding = 0;
  for (uint32_t slot = 0; slot < shape_.slots; ++slot)
    outstanding += filling_.at(slot) || Released(slot) != filled_.at(slot);
  return outstanding;
}

uint32_t Ring::Held() const {
  uint32_t held = 0;
  for (uint32_t slot = 0; slot < shape_.slots; ++slot) held += !filling_.at(slot) && Released(slot) != filled_.at(slot);
  return held;
}

}  // namespace lockstep::feed
