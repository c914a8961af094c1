#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lockstep/stage/slices.h"
#include "lockstep/stage/stream.h"

static struct ls_slot* slot_of_step(const struct ls_stage* s, int64_t step) {
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    if (s->slots[i].state == LS_SLOT_WRITING && s->slots[i].step == step) return &s->slots[i];
  }
  return NULL;
}

static uint8_t* flags_of(const struct ls_stage* s, const struct ls_slot* slot) {
  return s->committed + (size_t)(slot - s->slots) * (uint32_t)s->head->facts.ranks;
}

enum { kAbsent = 0, kCommitted = 1, kLeftOut = 2 }; /* of each rank's part */

static bool any_part(const struct ls_stage* s, const struct ls_slot* slot, int what) {
  return memchr(flags_of(s, slot), what, (size_t)s->head->facts.ranks) != NULL;
}

/* This rank has nothing for the steps before `step` that it has not committed. A slot is free again only when no rank
 * can still be writing into it. */
static void leave_out(struct ls_stage* s, int64_t step) {
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state != LS_SLOT_WRITING || slot->step >= step) continue;
    uint8_t* own = &flags_of(s, slot)[s->rank];
    if (*own == kAbsent) *own = kLeftOut;
    if (*own != kLeftOut || any_part(s, slot, kAbsent)) continue;
    slot->state = LS_SLOT_FREE;
    ++s->head->facts.incomplete;
  }
}

static struct ls_slot* begin_step(struct ls_stage* s, int64_t step) {
  struct ls_slot* slot = ls_room_for_step(s);
  if (slot == NULL) return NULL;
  memset(flags_of(s, slot), 0, (size_t)s->head->facts.ranks);
  slot->step = step;
  slot->epoch = s->self->epoch;
  slot->held = 0;
  __atomic_store_n(&slot->state, LS_SLOT_WRITING, __ATOMIC_RELEASE);
  return slot;
}

static int replaced(const struct ls_stage* s) {
  return ls_stage_fail(LS_STAGE_DIED, "stream %s: a newer start of the simulation has taken it over",
                       s->segment.head->name);
}

static int in_order(const struct ls_stage* s, int64_t step) {
  const char* name = s->segment.head->name;
  if (s->self->epoch != s->head->epoch) return replaced(s);
  if (step < 0) return ls_stage_fail(LS_STAGE_ORDER, "stream %s: step %" PRId64 ": expected 0 or more", name, step);
  const int64_t last = s->self->cursor > s->head->last_step ? s->self->cursor : s->head->last_step;
  if (step > last) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_ORDER, "stream %s, rank %d: step %" PRId64 " does not follow step %" PRId64, name,
                       s->rank, step, last);
}

static int no_room(const struct ls_stage* s, int64_t step, double timeout_s) {
  uint32_t writing = 0;
  for (uint32_t i = 0; i < s->head->slots; ++i) writing += s->slots[i].state == LS_SLOT_WRITING;
  return ls_stage_fail(LS_STAGE_TIMEOUT,
                       "stream %s, rank %d: no room for step %" PRId64
                       " in %g s: of %u slots %u wait for parts of other "
                       "ranks, the others for %s",
                       s->segment.head->name, s->rank, step, timeout_s, s->head->slots, writing,
                       s->head->readers_ever < s->head->readers_expected ? "a first reader" : "readers");
}

/* With the lock held, which it gives up meanwhile, as find_slot(). */
static int wait_for_room(struct ls_stage* s, int64_t deadline) {
  const uint32_t seen = __atomic_load_n(&s->head->freed, __ATOMIC_ACQUIRE);
  ls_stream_unlock(s);
  ls_stage_wait(&s->head->freed, seen, deadline, LS_LEASE_NS);
  return ls_stream_relock(s, deadline + LS_LEASE_NS);
}

static int find_slot(struct ls_stage* s, int64_t step, int64_t deadline, double timeout_s, struct ls_slot** slot) {
  bool waited = false;
  int result;
  while ((result = in_order(s, step)) == LS_STAGE_OK) {
    leave_out(s, step);
    *slot = slot_of_step(s, step);
    if (*slot == NULL) *slot = begin_step(s, step);
    if (*slot != NULL) return LS_STAGE_OK;
    if (ls_look_is_due(s) && ls_reap_readers(s)) continue;
    if (!waited && ls_wait_is_new()) ++s->head->facts.writer_waits;
    waited = true;
    if (ls_stage_now_ns() >= deadline) return no_room(s, step, timeout_s);
    if (ls_slice_over()) return LS_STAGE_AGAIN;
    result = wait_for_room(s, deadline);
    if (result != LS_STAGE_OK) return result;
  }
  return result;
}

int ls_stage_reserve(struct ls_stage* s, int64_t step, double timeout_s, void** memory) {
  const int64_t deadline = ls_wait_deadline(timeout_s);
  int result = ls_stream_owner(s, true);
  if (result == LS_STAGE_OK) result = ls_stage_need(memory, "memory");
  if (result != LS_STAGE_OK) return result;
  if (s->open_slot != LS_NO_PLACE) {
    return ls_stage_fail(LS_STAGE_ORDER, "stream %s, rank %d: step %" PRId64 " is reserved: commit or abandon it first",
                         s->segment.head->name, s->rank, s->slots[s->open_slot].step);
  }
  result = ls_stream_lock(s, deadline + LS_LEASE_NS);
  if (result != LS_STAGE_OK) return result;
  struct ls_slot* slot = NULL;
  result = find_slot(s, step, deadline, timeout_s, &slot);
  if (result == LS_STAGE_OK) {
    s->open_slot = (uint32_t)(slot - s->slots);
    *memory = s->parts + s->open_slot * s->head->slot_stride + (uint64_t)s->rank * s->head->facts.part_stride;
  }
  return ls_stream_done(s, result);
}

static int no_spill(struct ls_stage* s, int error) {
  struct ls_stage_facts* facts = &s->head->facts;
  ++facts->spill_failures;
  return ls_stage_fail(LS_STAGE_SPILL, "spill file %s ends after %" PRIu64 " steps: %s", facts->spill, facts->spilled,
                       error != 0 ? strerror(error) : "an earlier one could not be written");
}

/* With the lock held, which it gives up meanwhile: whoever commits last writes, and no step after this one can be
 * complete before. The record's place is the index that the step will have: if this process is killed before it shows
 * the step, the next start of the simulation writes over it. */
static int spill(struct ls_stage* s, struct ls_slot* slot, int64_t deadline) {
  const struct ls_stream_head* head = s->head;
  if (head->facts.spill_failures != 0) return no_spill(s, 0);
  slot->state = LS_SLOT_FLUSHING;
  const uint64_t index = (uint64_t)head->next_index;
  ls_stream_unlock(s);
  const char* parts = s->parts + (uint64_t)(slot - s->slots) * head->slot_stride;
  const int64_t begin = ls_stage_now_ns();
  const int error = ls_spill_append(s->spill, &head->facts, index, slot->step, parts);
  const int locked = ls_stream_relock(s, deadline + ls_stage_now_ns() - begin); /* a slow disk is not waiting */
  if (locked != LS_STAGE_OK) return locked;
  return error == 0 ? LS_STAGE_OK : no_spill(s, error);
}

/* With the lock held, unless it returns LS_NOT_LOCKED. */
static int commit_part(struct ls_stage* s, struct ls_slot* slot, int64_t deadline) {
  const bool again = slot->state == LS_SLOT_FLUSHING; /* the lock could not be had back after the flush */
  if ((slot->state != LS_SLOT_WRITING && !again) || slot->epoch != s->self->epoch) return replaced(s);
  s->self->cursor = slot->step;
  flags_of(s, slot)[s->rank] = kCommitted;
  if (any_part(s, slot, kAbsent)) return LS_STAGE_OK;
  if (any_part(s, slot, kLeftOut)) {
    slot->state = LS_SLOT_FREE;
    ++s->head->facts.incomplete;
    return LS_STAGE_OK;
  }
  const int result = s->spill >= 0 ? spill(s, slot, deadline) : LS_STAGE_OK;
  if (result == LS_NOT_LOCKED) return result;
  if (s->self->epoch != s->head->epoch) return replaced(s);
  ls_show(s, slot);
  if (s->spill >= 0 && result == LS_STAGE_OK) {
    __atomic_store_n(&s->head->facts.spilled, (uint64_t)s->head->next_index, __ATOMIC_RELEASE);
  }
  return result;
}

int ls_stage_commit(struct ls_stage* s) {
  const int64_t deadline = ls_stage_deadline(10.0);
  int result = ls_stream_owner(s, true);
  if (result != LS_STAGE_OK) return result;
  if (s->open_slot == LS_NO_PLACE) {
    return ls_stage_fail(LS_STAGE_ORDER, "stream %s, rank %d: commit without reserve", s->segment.head->name, s->rank);
  }
  result = ls_stream_lock(s, deadline);
  if (result != LS_STAGE_OK) return result;
  result = commit_part(s, &s->slots[s->open_slot], deadline);
  if (result != LS_NOT_LOCKED) s->open_slot = LS_NO_PLACE;
  result = ls_stream_done(s, result);
  ls_stage_wake(&s->head->shown);
  ls_stage_wake(&s->head->freed); /* a slot that the policy gave up, for a rank that waits */
  return result;
}

/* A step whose flush is done, and that could not be shown for want of the lock. */
static void take_back(const struct ls_stage* s, struct ls_slot* slot) {
  flags_of(s, slot)[s->rank] = kAbsent;
  slot->state = LS_SLOT_WRITING;
}

int ls_stage_abandon(struct ls_stage* s) {
  int result = ls_stream_owner(s, true);
  if (result != LS_STAGE_OK || s->open_slot == LS_NO_PLACE) return result;
  result = ls_stream_lock(s, ls_stage_deadline(10.0));
  if (result != LS_STAGE_OK) return result;
  struct ls_slot* slot = &s->slots[s->open_slot];
  s->self->cursor = slot->step;
  s->open_slot = LS_NO_PLACE;
  if (s->self->epoch == s->head->epoch) {
    if (slot->state == LS_SLOT_FLUSHING) take_back(s, slot);
    leave_out(s, s->self->cursor + 1);
  }
  ls_stream_unlock(s);
  ls_stage_wake(&s->head->freed);
  return LS_STAGE_OK;
}

int64_t ls_stage_last_step(const struct ls_stage* s) {
  return ls_handle_is(s, LS_SEGMENT_STREAM) ? __atomic_load_n(&s->head->last_step, __ATOMIC_RELAXED) : -1;
}

/* Once a reader has come, the file stays for it. */
static int linger(struct ls_stage* s, double linger_s, bool in_slices) {
  const int64_t deadline = in_slices ? ls_wait_deadline(linger_s) : ls_stage_deadline(linger_s);
  const struct ls_stream_head* head = s->head;
  if (head->facts.policy != LS_STAGE_LOSSLESS || head->last_step < 0) return LS_STAGE_OK;
  while (__atomic_load_n(&head->readers_ever, __ATOMIC_ACQUIRE) < head->readers_expected) {
    if (ls_stage_now_ns() >= deadline) {
      return ls_stage_fail(LS_STAGE_TIMEOUT, "stream %s: closed before %u readers had come, in %g s: %u did",
                           s->segment.head->name, head->readers_expected, linger_s, head->readers_ever);
    }
    if (in_slices && ls_slice_over()) return LS_STAGE_AGAIN;
    ls_stage_wait(&s->head->freed, __atomic_load_n(&s->head->freed, __ATOMIC_ACQUIRE), deadline, LS_LEASE_NS);
  }
  return LS_STAGE_OK;
}

int ls_stage_linger(struct ls_stage* s, double linger_s) {
  const int result = ls_stream_owner(s, true);
  return result == LS_STAGE_OK ? linger(s, linger_s, true) : result;
}

int ls_stage_close(struct ls_stage* s, double linger_s) {
  int result = ls_stream_owner(s, true);
  if (result != LS_STAGE_OK) return result;
  ls_handle_close(&s->segment);
  result = linger(s, linger_s, false);
  __atomic_store_n(&s->self->state, LS_MEMBER_CLOSED, __ATOMIC_RELEASE);
  ls_stage_wake(&s->head->shown);
  ls_segment_depart(&s->segment, s->self, ls_stage_deadline(1.0));
  ls_stream_clear(s);
  return result;
}
