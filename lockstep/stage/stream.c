#define _GNU_SOURCE
#include "lockstep/stage/stream.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/stage/handle.h"

enum { kPage = 4096, kLine = 64 };

static size_t align(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

/* Offsets of head, slots, commit flags, parts and end. */
static void lay_out(uint32_t ranks, uint32_t slots, uint64_t slot_stride, size_t at[5]) {
  at[0] = align(sizeof(struct ls_segment_head) + (ranks + LS_READERS) * sizeof(struct ls_member), kLine);
  at[1] = align(at[0] + sizeof(struct ls_stream_head), kLine);
  at[2] = at[1] + slots * sizeof(struct ls_slot);
  at[3] = align(at[2] + (size_t)slots * ranks, kPage);
  at[4] = at[3] + slots * slot_stride;
}

size_t ls_stream_bytes(uint32_t ranks, uint32_t slots, uint64_t slot_stride) {
  size_t at[5], parts;
  lay_out(ranks, slots, slot_stride, at);
  return __builtin_mul_overflow(slots, slot_stride, &parts) || parts > SIZE_MAX - at[3] ? SIZE_MAX : at[4];
}

void ls_stream_locate(struct ls_stage* s) {
  char* memory = (char*)s->segment.head;
  const uint32_t ranks = s->segment.head->members - LS_READERS;
  size_t at[5];
  lay_out(ranks, 0, 0, at);
  s->head = (struct ls_stream_head*)(memory + at[0]);
  lay_out(ranks, s->head->slots, s->head->slot_stride, at);
  s->slots = (struct ls_slot*)(memory + at[1]);
  s->committed = (uint8_t*)memory + at[2];
  s->parts = memory + at[3];
}

int ls_stream_find(struct ls_stage* s) {
  const size_t bytes = s->segment.bytes;
  const uint32_t members = s->segment.head->members, ranks = members - LS_READERS;
  if (members > LS_READERS && ls_stream_bytes(ranks, 0, 0) <= bytes) {
    ls_stream_locate(s);
    const struct ls_stream_head* head = s->head;
    if ((uint32_t)head->facts.ranks == ranks && head->slots <= 2 * LS_STAGE_SLOTS && head->slot_stride <= bytes &&
        head->facts.part_stride <= head->slot_stride / ranks &&
        ls_stream_bytes(ranks, head->slots, head->slot_stride) == bytes) {
      return LS_STAGE_OK;
    }
  }
  return ls_stage_fail(LS_STAGE_REFUSED, "%s is damaged: remove it", s->segment.path);
}

static int lock_until(pthread_mutex_t* lock, int64_t deadline) {
#ifdef __SANITIZE_THREAD__ /* that of gcc 12 does not know pthread_mutex_clocklock() */
  int error;
  while ((error = pthread_mutex_trylock(lock)) == EBUSY && ls_stage_now_ns() < deadline) sched_yield();
  return error;
#else
  const struct timespec limit = {.tv_sec = deadline / 1000000000, .tv_nsec = deadline % 1000000000};
  return pthread_mutex_clocklock(lock, CLOCK_MONOTONIC, &limit);
#endif
}

int ls_stream_lock(struct ls_stage* s, int64_t deadline) {
  int error = pthread_mutex_trylock(&s->head->lock);
  if (error == EBUSY) error = lock_until(&s->head->lock, deadline);
  if (error == EOWNERDEAD) {
    ls_settle(s);
    pthread_mutex_consistent(&s->head->lock);
    return LS_STAGE_OK;
  }
  if (error == 0) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_TIMEOUT, "stream %s: another process keeps it locked; is one stopped?",
                       s->segment.head->name);
}
void ls_stream_unlock(struct ls_stage* s) { pthread_mutex_unlock(&s->head->lock); }

/* ---- handles ---- */

static struct ls_handles handles;

struct ls_stage* ls_stream_new(int rank) {
  struct ls_stage* s = calloc(1, sizeof *s);
  if (s == NULL) {
    ls_stage_fail(LS_STAGE_REFUSED, "no memory");
    return NULL;
  }
  if (ls_handle_add(&handles, s) != LS_STAGE_OK) {
    free(s);
    return NULL;
  }
  s->pid = getpid();
  s->rank = rank;
  s->open_slot = LS_NO_PLACE;
  s->spill = -1;
  return s;
}
void ls_stream_shut(struct ls_stage* s) { ls_handle_remove(&handles, s); }
void ls_stream_free(struct ls_stage* s) {
  ls_stream_shut(s);
  if (s->spill >= 0) close(s->spill);
  free(s->holds);
  free(s);
}
bool ls_stream_is_open(const struct ls_stage* s) { return ls_handle_is_open(&handles, s); }

int ls_stream_owner(const struct ls_stage* s, bool writes) {
  if (!ls_stream_is_open(s) || writes != (s->rank >= 0)) {
    return ls_stage_fail(LS_STAGE_REFUSED, "this call needs a stream from %s that is not closed",
                         writes ? "ls_stage_open()" : "ls_stage_attach()");
  }
  if (s->pid == getpid()) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "stream %s was opened by process %d, before a fork: open it here too",
                       s->segment.head->name, s->pid);
}

/* ---- who is alive ---- */

bool ls_look_is_due(struct ls_stage* s) {
  const int64_t now = ls_stage_now_ns();
  if (now - s->looked < LS_LEASE_NS) return false;
  s->looked = now;
  return true;
}

/* In this order: one that closes says so before it leaves. */
bool ls_writer_died(const struct ls_stage* s, const struct ls_member* writer) {
  return !ls_member_alive(writer) && __atomic_load_n(&writer->state, __ATOMIC_ACQUIRE) == LS_MEMBER_WRITES &&
         writer->epoch == s->head->epoch;
}

bool ls_slot_wanted(const struct ls_stage* s, const struct ls_slot* slot) {
  for (uint32_t i = 0; i < LS_READERS; ++i) {
    const struct ls_member* reader = ls_reader(s, i);
    if (reader->pid == 0 || reader->cursor >= slot->index) continue;
    if ((uint64_t)slot->index % reader->shards == reader->shard) return true;
  }
  return false;
}

void ls_drop_reader(struct ls_stage* s, uint32_t i) {
  /* In this order: whoever is killed in between leaves a dead reader, which the next one drops again. */
  for (uint32_t k = 0; k < s->head->slots; ++k) s->slots[k].held &= ~(1ull << i);
  __atomic_store_n(&ls_reader(s, i)->pid, 0, __ATOMIC_RELEASE);
  ls_settle(s);
  ls_stage_wake(&s->head->freed);
}

bool ls_reap_readers(struct ls_stage* s) {
  bool any = false;
  for (uint32_t i = 0; i < LS_READERS; ++i) {
    if (ls_reader(s, i)->pid == 0 || ls_member_alive(ls_reader(s, i))) continue;
    ++s->head->facts.readers_reaped;
    ls_drop_reader(s, i);
    any = true;
  }
  return any;
}
