#include "lockstep/record/ring.h"

#include <string.h>

bool ls_ring_format(void* memory, size_t bytes) {
  if (bytes < ls_ring_bytes(1)) return false;
  uint32_t capacity = 1;
  while (capacity <= UINT32_MAX / 4 && ls_ring_bytes(capacity * 2) <= bytes) capacity *= 2;
  struct ls_ring* ring = memory;
  memset(ring, 0, sizeof *ring);
  ring->capacity = capacity;
  __atomic_store_n(&ring->magic, LS_RING_MAGIC, __ATOMIC_RELEASE);
  return true;
}

struct ls_ring* ls_ring_attach(void* memory, size_t bytes) {
  struct ls_ring* ring = memory;
  if (bytes < sizeof *ring || __atomic_load_n(&ring->magic, __ATOMIC_ACQUIRE) != LS_RING_MAGIC) return NULL;
  const uint32_t capacity = ring->capacity;
  const bool power_of_two = capacity != 0 && (capacity & (capacity - 1)) == 0;
  return power_of_two && ls_ring_bytes(capacity) <= bytes ? ring : NULL;
}

/* Copies `count` cells out of or into the ring at position `at`, around its end if need be. */
static void copy_out(const struct ls_ring* ring, uint32_t size, uint64_t at, struct ls_record* to, uint64_t count) {
  const uint64_t mask = size - 1u;
  for (uint64_t i = 0; i < count; ++i) to[i] = ring->cell[(at + i) & mask];
}
static void copy_in(struct ls_ring* ring, uint64_t at, const struct ls_record* from, uint64_t count) {
  const uint64_t mask = ring->capacity - 1u;
  for (uint64_t i = 0; i < count; ++i) ring->cell[(at + i) & mask] = from[i];
}

bool ls_ring_push(struct ls_ring* ring, const struct ls_record* record) {
  const uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_RELAXED);
  const uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
  const uint64_t cells = 1u + record->more;
  /* Unsigned: a tail ahead of head, which only a broken consumer writes, reads as a full ring. */
  if (head - tail > ring->capacity || ring->capacity - (head - tail) < cells) {
    __atomic_store_n(&ring->dropped, __atomic_load_n(&ring->dropped, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    return false;
  }
  copy_in(ring, head, record, cells);
  __atomic_store_n(&ring->head, head + cells, __ATOMIC_RELEASE);
  return true;
}

/* The consumer's own counter. */
static void count_skipped(struct ls_ring* ring, uint64_t cells) {
  __atomic_store_n(&ring->skipped, __atomic_load_n(&ring->skipped, __ATOMIC_RELAXED) + cells, __ATOMIC_RELAXED);
}

size_t ls_ring_pop(struct ls_ring* ring, struct ls_record* cells, size_t capacity) {
  uint64_t tail = __atomic_load_n(&ring->tail, __ATOMIC_RELAXED);
  const uint64_t head = __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
  const uint32_t size = ring->capacity;
  size_t taken = 0;
  while (tail != head) {
    const uint64_t there = head - tail;
    const uint64_t wanted = 1u + ring->cell[tail & (size - 1u)].more;
    if (there > size || wanted > there) { /* a worker scribbled over its ring: go on after the mess */
      count_skipped(ring, there > size ? size : there);
      tail = head;
    } else if (wanted > capacity) {
      count_skipped(ring, wanted);
      tail += wanted;
    } else if (wanted > capacity - taken) {
      break;
    } else {
      copy_out(ring, size, tail, cells + taken, wanted);
      taken += wanted;
      tail += wanted;
    }
  }
  __atomic_store_n(&ring->tail, tail, __ATOMIC_RELEASE);
  return taken;
}
