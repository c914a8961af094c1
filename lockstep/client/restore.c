#define _GNU_SOURCE
#include <time.h>

#include "lockstep/client/join.h"
#include "lockstep/client/session.h"

static const struct timespec kPoll = {.tv_nsec = 200 * 1000};

/* LS_OK when the agent has said what this epoch is to load. */
static int await_point(const struct ls_client* c, double timeout_s) {
  const int64_t limit = ls_now_ns() + (int64_t)(timeout_s * 1e9);
  while (__atomic_load_n(&c->board->restore_for, __ATOMIC_ACQUIRE) != c->epoch) {
    if (!ls_is_current(c)) return ls_fail(LS_REFUSED, "epoch %llu is over", (unsigned long long)c->epoch);
    if (ls_now_ns() >= limit) return ls_fail(LS_TIMEOUT, "the agent named no restore point within %.0f s", timeout_s);
    nanosleep(&kPoll, NULL);
  }
  return LS_OK;
}

/* The index of the slot to load, or -1 after ls_fail(). */
static int find_slot(const struct ls_client* c, struct ls_checkpoint id) {
  const int slot = ls_slot_find(c->block, id);
  if (slot < 0) {
    return ls_fail(-1, "rank %u holds no checkpoint of step %lld (epoch %llu)", c->rank, (long long)id.step,
                   (unsigned long long)id.epoch);
  }
  const uint32_t ranks = c->block->slot[slot].world_size;
  if (ranks == c->world_size) return slot;
  return ls_fail(
      -1, "the checkpoint of step %lld was written by %u ranks, but this job has %u: start it with %u ranks, or afresh",
      (long long)id.step, ranks, c->world_size, ranks);
}

static bool is_fresh(const struct ls_slot* slot, const char* base) {
  return slot->proof == 0 || slot->proof == ls_proof(slot->epoch, slot->step, base, slot->bytes);
}

static int verify(const struct ls_client* c, struct ls_slot* slot, const char* base) {
  const bool sane = slot->bytes <= ls_slot_capacity(c) && slot->meta_bytes <= slot->bytes;
  const uint32_t crc = sane ? ls_crc32c(0, base, slot->bytes) : 0;
  const bool whole = sane && crc == slot->crc32c;
  if (whole && is_fresh(slot, base)) return LS_OK;
  __atomic_store_n(&slot->state, LS_SLOT_BAD, __ATOMIC_RELEASE);
  if (whole) {
    return ls_fail(LS_CORRUPT, "rank %u: what stands under step %lld is not its state: the proof of freshness differs",
                   c->rank, (long long)slot->step);
  }
  return ls_fail(LS_CORRUPT, "rank %u: the checkpoint of step %lld is corrupt: CRC %#x, expected %#x", c->rank,
                 (long long)slot->step, crc, slot->crc32c);
}

int ls_restore_point(struct ls_client* c, double timeout_s, int64_t* step, const void** meta, uint64_t* meta_bytes,
                     const void** tensors, uint64_t* tensor_bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  int result = await_point(c, timeout_s);
  if (result != LS_OK) return result;
  const struct ls_checkpoint id = {c->board->restore_epoch, c->board->restore_step};
  if (id.epoch == 0) return LS_FRESH;
  *step = id.step;
  if (c->board->restore_ranks != 0) return LS_ON_DISK;
  const int index = find_slot(c, id);
  if (index < 0) return LS_REFUSED;
  struct ls_slot* slot = &c->block->slot[index];
  result = ls_buffers(c, slot->bytes);
  if (result != LS_OK) return result;
  const char* base = c->buffers.slot[index];
  result = verify(c, slot, base);
  if (result != LS_OK) return result;
  const uint64_t begin = ls_align(slot->meta_bytes);
  *meta = base;
  *meta_bytes = slot->meta_bytes;
  *tensors = base + begin;
  *tensor_bytes = slot->bytes > begin ? slot->bytes - begin : 0;
  return LS_OK;
}

void ls_restore_on_disk(const struct ls_client* c, uint64_t* epoch, uint64_t* ranks) {
  *epoch = ls_is_joined(c) ? c->board->restore_epoch : 0;
  *ranks = ls_is_joined(c) ? c->board->restore_ranks : 0;
}
