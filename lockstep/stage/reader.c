#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/stage/slices.h"
#include "lockstep/stage/stream.h"

enum { kReaderNs = 1000 * 1000 * 1000 }; /* for the lock, beyond a limit */

/* ---- attaching ---- */

/* Not that of one who has died since they were reaped: what it held, it would hold. */
static struct ls_member* free_place(const struct ls_stage* s) {
  for (uint32_t i = 0; i < LS_READERS; ++i) {
    if (ls_reader(s, i)->pid == 0) return ls_reader(s, i);
  }
  return NULL;
}

/* With the room and the stream locked. */
static int take_place(struct ls_stage* s, int shard, int shards) {
  ls_reap_readers(s);
  struct ls_member* self = free_place(s);
  if (self == NULL) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s has %d readers already", s->segment.head->name, LS_READERS);
  }
  self->cursor = -1;
  self->shard = (uint32_t)shard;
  self->shards = (uint32_t)shards;
  self->skipped = 0;
  const int result = ls_member_enter(self, LS_MEMBER_READS);
  if (result != LS_STAGE_OK) return result;
  s->self = self;
  __atomic_fetch_add(&s->head->readers_ever, 1, __ATOMIC_RELEASE);
  ls_stage_wake(&s->head->freed);
  return LS_STAGE_OK;
}

static int attach_in(struct ls_stage* s, const char* folder, const char* name, int shard, int shards,
                     int64_t deadline) {
  int result = ls_segment_open(folder, name, LS_SEGMENT_STREAM, &s->segment);
  if (result != LS_STAGE_OK) return result;
  result = ls_stream_find(s);
  if (result != LS_STAGE_OK) {
    ls_segment_drop(&s->segment);
    return result;
  }
  s->holds = calloc(s->head->slots, sizeof *s->holds);
  result = s->holds == NULL ? ls_stage_fail(LS_STAGE_REFUSED, "no memory") : ls_stream_lock(s, deadline + kReaderNs);
  if (result == LS_STAGE_OK) {
    result = take_place(s, shard, shards);
    ls_stream_unlock(s);
  }
  if (result == LS_STAGE_OK) return result;
  ls_segment_drop(&s->segment);
  return result;
}

static int attach_once(struct ls_stage* s, const char* name, int shard, int shards, int64_t deadline,
                       char folder[LS_FOLDER]) {
  const int room = ls_room_enter(folder, deadline);
  if (room < 0) return LS_STAGE_REFUSED;
  const int result = attach_in(s, folder, name, shard, shards, deadline);
  ls_room_leave(room, folder);
  return result;
}

int ls_stage_attach(const char* name, int shard, int shards, double timeout_s, struct ls_stage** stream) {
  const int64_t deadline = ls_wait_deadline(timeout_s);
  const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
  char folder[LS_FOLDER];
  int result = ls_stage_need(stream, "stream");
  if (result != LS_STAGE_OK) return result;
  *stream = NULL;
  if (shards < 1 || shard < 0 || shard >= shards) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: shard %d of %d: expected 0 <= shard < shards", name, shard,
                         shards);
  }
  struct ls_stage* s = ls_stream_new(-1);
  if (s == NULL) return LS_STAGE_REFUSED;
  while ((result = attach_once(s, name, shard, shards, deadline, folder)) == LS_STAGE_ABSENT &&
         ls_stage_now_ns() < deadline && !ls_slice_over()) {
    nanosleep(&pause, NULL);
  }
  if (result == LS_STAGE_ABSENT && ls_stage_now_ns() < deadline) result = LS_STAGE_AGAIN;
  ls_stream_give(s, result, stream);
  if (result != LS_STAGE_ABSENT) return result;
  return ls_stage_fail(result, "no stream %s in %s: no writer has opened it in %g s", name, folder, timeout_s);
}

int ls_stage_detach(struct ls_stage* s) {
  const int64_t deadline = ls_stage_deadline(1.0);
  const int result = ls_stream_owner(s, false);
  if (result != LS_STAGE_OK) return result;
  ls_handle_close(&s->segment);
  if (ls_stream_lock(s, deadline) == LS_STAGE_OK) {
    ls_drop_reader(s, (uint32_t)(s->self - ls_reader(s, 0)));
    ls_stream_unlock(s);
  } else {
    ls_member_die(s->self); /* whoever waits for what it holds takes that back */
  }
  ls_segment_depart(&s->segment, NULL, deadline);
  ls_stream_clear(s);
  return LS_STAGE_OK;
}

int ls_stage_leave(struct ls_stage* s) {
  const int result = ls_stream_owner(s, false);
  if (result == LS_STAGE_OK) ls_segment_forsake(&s->segment, s->self);
  return result;
}

/* ---- steps ---- */

int ls_stage_look(struct ls_stage* s, struct ls_stage_facts* facts) {
  int result = ls_stream_owner(s, false);
  if (result == LS_STAGE_OK) result = ls_stage_need(facts, "facts");
  if (result == LS_STAGE_OK) result = ls_stream_lock(s, ls_stage_deadline(1.0));
  if (result != LS_STAGE_OK) return result;
  *facts = s->head->facts;
  facts->skipped = s->self->skipped;
  ls_stream_unlock(s);
  return LS_STAGE_OK;
}

static bool mine(const struct ls_stage* s, int64_t index) {
  return (uint64_t)index % s->self->shards == s->self->shard;
}

static struct ls_slot* oldest_new(const struct ls_stage* s) {
  struct ls_slot* found = NULL;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    struct ls_slot* slot = &s->slots[i];
    if (slot->state != LS_SLOT_SHOWN || slot->index <= s->self->cursor || !mine(s, slot->index)) continue;
    if (found == NULL || slot->index < found->index) found = slot;
  }
  return found;
}

static void hold(struct ls_stage* s, struct ls_slot* slot, struct ls_stage_step* step) {
  const uint32_t i = (uint32_t)(slot - s->slots);
  slot->held |= 1ull << (s->self - ls_reader(s, 0));
  slot->taken = 1;
  ++s->holds[i];
  step->step = slot->step;
  step->index = slot->index;
  step->memory = s->parts + i * s->head->slot_stride;
  step->slot = i;
  step->reserved = 0;
}

static void advance(struct ls_stage* s, int64_t index) {
  const uint64_t shards = s->self->shards, from = (uint64_t)(s->self->cursor + 1);
  const uint64_t first = from + (s->self->shard + shards - from % shards) % shards;
  if (first < (uint64_t)index) s->self->skipped += ((uint64_t)index - first) / shards;
  s->self->cursor = index;
}

static bool ended(const struct ls_stage* s) {
  for (int32_t i = 0; i < s->head->facts.ranks; ++i) {
    const struct ls_member* writer = &s->segment.head->member[i];
    if (writer->state != LS_MEMBER_CLOSED || writer->epoch != s->head->epoch) return false;
  }
  return true;
}

/* Without the lock, for of thousands of ranks it takes its time: one that looks dead may be about to open. */
static const struct ls_member* find_dead(const struct ls_stage* s) {
  for (int32_t i = 0; i < s->head->facts.ranks; ++i) {
    const struct ls_member* writer = &s->segment.head->member[i];
    if (ls_writer_died(s, writer)) return writer;
  }
  return NULL;
}

/* With the lock held, which it gives up meanwhile: LS_NOT_LOCKED if it can't have it back. */
static int wait_for_step(struct ls_stage* s, int64_t deadline, double timeout_s) {
  if (ended(s)) return ls_stage_fail(LS_STAGE_END, "stream %s has ended", s->segment.head->name);
  const uint32_t seen = __atomic_load_n(&s->head->shown, __ATOMIC_ACQUIRE);
  ls_stream_unlock(s);
  ls_stage_wait(&s->head->shown, seen, deadline, LS_LEASE_NS);
  const bool over = ls_stage_now_ns() >= deadline;
  const bool quiet = __atomic_load_n(&s->head->shown, __ATOMIC_ACQUIRE) == seen;
  const struct ls_member* dead = quiet && (ls_look_is_due(s) || over) ? find_dead(s) : NULL;
  const int locked = ls_stream_relock(s, deadline + kReaderNs);
  if (locked != LS_STAGE_OK) return locked;
  if (__atomic_load_n(&s->head->shown, __ATOMIC_ACQUIRE) != seen) return LS_STAGE_OK;
  if (dead != NULL && ls_writer_died(s, dead)) {
    return ls_stage_fail(LS_STAGE_DIED, "stream %s: the writer of rank %d, process %d, is gone after step %" PRId64,
                         s->segment.head->name, (int)(dead - s->segment.head->member), dead->pid, dead->cursor);
  }
  if (!over) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_TIMEOUT, "stream %s: no step after index %" PRId64 " in %g s", s->segment.head->name,
                       s->self->cursor, timeout_s);
}

int ls_stage_next(struct ls_stage* s, double timeout_s, struct ls_stage_step* step) {
  const int64_t deadline = ls_wait_deadline(timeout_s);
  int result = ls_stream_owner(s, false);
  if (result == LS_STAGE_OK) result = ls_stage_need(step, "step");
  if (result == LS_STAGE_OK) result = ls_stream_lock(s, deadline + kReaderNs);
  if (result != LS_STAGE_OK) return result;
  struct ls_slot* slot = oldest_new(s);
  while (slot == NULL && result == LS_STAGE_OK) {
    result = wait_for_step(s, deadline, timeout_s);
    if (result != LS_NOT_LOCKED) slot = oldest_new(s);
    if (result == LS_STAGE_OK && ls_slice_over()) result = LS_STAGE_AGAIN;
  }
  if (slot != NULL) {
    advance(s, slot->index);
    hold(s, slot, step);
    result = LS_STAGE_OK;
  }
  return ls_stream_done(s, result);
}

int ls_stage_get(struct ls_stage* s, int64_t step, struct ls_stage_step* found) {
  int result = ls_stream_owner(s, false);
  if (result == LS_STAGE_OK) result = ls_stage_need(found, "step");
  if (result == LS_STAGE_OK) result = ls_stream_lock(s, ls_stage_deadline(1.0));
  if (result != LS_STAGE_OK) return result;
  result = LS_STAGE_ABSENT;
  for (uint32_t i = 0; i < s->head->slots && result != LS_STAGE_OK; ++i) {
    if (s->slots[i].state != LS_SLOT_SHOWN || s->slots[i].step != step) continue;
    hold(s, &s->slots[i], found);
    result = LS_STAGE_OK;
  }
  ls_stream_unlock(s);
  if (result == LS_STAGE_OK) return result;
  return ls_stage_fail(result, "stream %s has no step %" PRId64 " now", s->segment.head->name, step);
}

static int by_value(const void* a, const void* b) {
  const int64_t left = *(const int64_t*)a, right = *(const int64_t*)b;
  return left < right ? -1 : left > right;
}

int ls_stage_list(struct ls_stage* s, int64_t* steps, int room) {
  if (ls_stream_owner(s, false) != LS_STAGE_OK || ls_stream_lock(s, ls_stage_deadline(1.0)) != LS_STAGE_OK) return -1;
  int count = 0;
  if (steps == NULL || room < 0) room = 0;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    if (s->slots[i].state != LS_SLOT_SHOWN) continue;
    if (count < room) steps[count] = s->slots[i].step;
    ++count;
  }
  ls_stream_unlock(s);
  if (room > 0) qsort(steps, (size_t)(count < room ? count : room), sizeof *steps, by_value);
  return count;
}

int ls_stage_release(struct ls_stage* s, const struct ls_stage_step* step) {
  int result = ls_stream_owner(s, false);
  if (result == LS_STAGE_OK) result = ls_stage_need(step, "step");
  if (result == LS_STAGE_OK) result = ls_stream_lock(s, ls_stage_deadline(1.0));
  if (result != LS_STAGE_OK) return result;
  if (step->slot >= s->head->slots || s->holds[step->slot] == 0 || s->slots[step->slot].index != step->index) {
    ls_stream_unlock(s);
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: step %" PRId64 " is not held", s->segment.head->name,
                         step->step);
  }
  struct ls_slot* slot = &s->slots[step->slot];
  if (--s->holds[step->slot] == 0) slot->held &= ~(1ull << (s->self - ls_reader(s, 0)));
  if (slot->state == LS_SLOT_RETIRED && slot->held == 0) slot->state = LS_SLOT_FREE;
  ls_stream_unlock(s);
  ls_stage_wake(&s->head->freed);
  return LS_STAGE_OK;
}
