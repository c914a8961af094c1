#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lockstep/stage/stream.h"

/* ---- what the caller wants ---- */

static uint64_t dtype_bytes(int dtype) {
  static const uint8_t bytes[] = {0, 4, 8, 4, 8, 1, 2};
  return dtype >= LS_STAGE_F32 && dtype <= LS_STAGE_F16 ? bytes[dtype] : 0;
}

static int take_shape(const char* name, int dtype, int ndim, const int64_t* shape, struct ls_stage_facts* facts) {
  facts->part_bytes = dtype_bytes(dtype);
  if (facts->part_bytes == 0) return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: no such dtype: %d", name, dtype);
  if (ndim < 1 || ndim > LS_STAGE_DIMS) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: %d dimensions: expected 1 to %d", name, ndim, LS_STAGE_DIMS);
  }
  const int given = ls_stage_need(shape, "shape");
  if (given != LS_STAGE_OK) return given;
  facts->dtype = dtype;
  facts->ndim = ndim;
  for (int i = 0; i < ndim; ++i) {
    facts->shape[i] = shape[i];
    if (shape[i] < 1 || (uint64_t)shape[i] > ((uint64_t)1 << 40) / facts->part_bytes) {
      return ls_stage_fail(LS_STAGE_REFUSED,
                           "stream %s: dimension %d is %" PRId64 ": expected 1 or more, and at most 1 TiB in all", name,
                           i, shape[i]);
    }
    facts->part_bytes *= (uint64_t)shape[i];
  }
  facts->part_stride = (facts->part_bytes + 63) / 64 * 64;
  return LS_STAGE_OK;
}

static int take_options(const char* name, const struct ls_stage_options* how, struct ls_stage_facts* facts) {
  if (how == NULL || how->policy < LS_STAGE_LOSSLESS || how->policy > LS_STAGE_REPLAY) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: no such policy: %d", name, how == NULL ? 0 : how->policy);
  }
  if (how->k < 1 || how->k > LS_STAGE_SLOTS) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: k is %u: expected 1 to %d steps", name, how->k, LS_STAGE_SLOTS);
  }
  if (how->spare > LS_STAGE_SLOTS) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: spare is %u: expected at most %d", name, how->spare,
                         LS_STAGE_SLOTS);
  }
  if (how->policy == LS_STAGE_REPLAY && how->spill == NULL) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: policy replay needs a spill file", name);
  }
  facts->policy = how->policy;
  facts->k = how->k;
  return LS_STAGE_OK;
}

static int take(const char* name, int rank, int ranks, int dtype, int ndim, const int64_t* shape,
                const struct ls_stage_options* how, struct ls_stage_facts* facts) {
  if (ranks < 1 || ranks > LS_STAGE_RANKS || rank < 0 || rank >= ranks) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s: rank %d of %d: expected 0 <= rank < ranks <= %d", name, rank,
                         ranks, LS_STAGE_RANKS);
  }
  facts->ranks = ranks;
  const int result = take_options(name, how, facts);
  return result != LS_STAGE_OK ? result : take_shape(name, dtype, ndim, shape, facts);
}

static void describe(const struct ls_stage_facts* facts, bool spills, char text[200]) {
  static const char* const dtypes[] = {"?", "f32", "f64", "i32", "i64", "u8", "f16"};
  static const char* const policies[] = {"?", "lossless", "latest", "reservoir", "replay"};
  int at = snprintf(text, 200, "%d ranks, %s [", facts->ranks, dtypes[facts->dtype]);
  for (int i = 0; i < facts->ndim && at < 160; ++i) {
    at += snprintf(text + at, (size_t)(200 - at), i ? " %" PRId64 : "%" PRId64, facts->shape[i]);
  }
  snprintf(text + at, (size_t)(200 - at), "], %s, k %u%s", policies[facts->policy], facts->k,
           spills ? ", a spill file" : "");
}

static int agree(const char* name, const struct ls_stage_facts* there, const struct ls_stage_facts* wanted,
                 bool spills) {
  const bool spills_there = there->spill[0] != '\0';
  if (there->ranks == wanted->ranks && there->dtype == wanted->dtype && there->ndim == wanted->ndim &&
      memcmp(there->shape, wanted->shape, sizeof there->shape) == 0 && there->policy == wanted->policy &&
      there->k == wanted->k && spills_there == spills) {
    return LS_STAGE_OK;
  }
  char has[200], asked[200];
  describe(there, spills_there, has);
  describe(wanted, spills, asked);
  return ls_stage_fail(LS_STAGE_REFUSED, "stream %s exists with %s; this rank says %s: all ranks must say the same",
                       name, has, asked);
}

/* ---- opening ---- */

static void begin(struct ls_stage* s, const struct ls_stage_facts* facts, const struct ls_stage_options* how) {
  pthread_mutexattr_t kind;
  pthread_mutexattr_init(&kind);
  pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&s->head->lock, &kind);
  pthread_mutexattr_destroy(&kind);
  s->head->facts = *facts;
  s->head->readers_expected = how->readers != 0 ? how->readers : 1;
  s->head->epoch = 1;
  s->head->last_step = -1;
  s->head->seed = how->seed;
}

/* Readers and other ranks may have another working directory. */
static int make_spill(struct ls_stage* s, const char* path, struct ls_stage_facts* facts) {
  s->spill = ls_spill_create(path, facts);
  if (s->spill < 0) return LS_STAGE_REFUSED;
  char* whole = realpath(path, NULL);
  const bool fits = whole != NULL && strlen(whole) < sizeof facts->spill;
  if (fits) memcpy(facts->spill, whole, strlen(whole) + 1);
  free(whole);
  if (fits) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "spill file %.200s: expected a path of less than %zu bytes", path,
                       sizeof facts->spill);
}

static int make(struct ls_stage* s, const char* folder, const char* name, struct ls_stage_facts* facts,
                const struct ls_stage_options* how) {
  const uint32_t spare = how->policy == LS_STAGE_LOSSLESS ? 0 : how->spare != 0 ? how->spare : 3;
  const uint32_t slots = how->k + spare, ranks = (uint32_t)facts->ranks;
  const uint64_t stride = (facts->part_stride * ranks + 4095) / 4096 * 4096;
  int result = ls_segment_create(folder, name, LS_SEGMENT_STREAM, ranks + LS_READERS,
                                 ls_stream_bytes(ranks, slots, stride), &s->segment);
  if (result != LS_STAGE_OK) return result;
  ls_stream_locate(s);
  s->head->slots = slots;
  s->head->slot_stride = stride;
  ls_stream_locate(s);
  if (how->spill != NULL) result = make_spill(s, how->spill, facts);
  begin(s, facts, how);
  return result;
}

/* What an earlier start of the simulation had begun is void. */
static void begin_epoch(struct ls_stage* s) {
  ++s->head->epoch;
  for (uint32_t i = 0; i < s->head->slots; ++i) {
    const uint32_t state = s->slots[i].state;
    if (state != LS_SLOT_WRITING && state != LS_SLOT_FLUSHING) continue;
    s->slots[i].state = LS_SLOT_FREE;
    ++s->head->facts.incomplete;
  }
}

static bool writes(const struct ls_stage* s, const struct ls_member* writer) {
  return writer->state == LS_MEMBER_WRITES && writer->epoch == s->head->epoch && ls_member_alive(writer);
}

/* A writer of the current epoch, other than this rank's, that is alive; or, if not `alive`, that is gone without
 * closing. */
static const struct ls_member* other_writer(const struct ls_stage* s, bool alive) {
  for (int32_t i = 0; i < s->head->facts.ranks; ++i) {
    const struct ls_member* writer = &s->segment.head->member[i];
    if (i != s->rank && (alive ? writes(s, writer) : ls_writer_died(s, writer))) return writer;
  }
  return NULL;
}

/* One start of the simulation is one epoch: no step is made of parts of two. */
static int choose_epoch(struct ls_stage* s, const struct ls_member* self) {
  const struct ls_member* alive = other_writer(s, true);
  const bool again = self->state != LS_MEMBER_NONE && self->epoch == s->head->epoch;
  if (again && alive != NULL) {
    return ls_stage_fail(
        LS_STAGE_REFUSED,
        "stream %s: rank %d was open before, and process %d of that start still runs: all ranks start anew, "
        "or none",
        s->segment.head->name, s->rank, alive->pid);
  }
  if (alive == NULL && (again || other_writer(s, false) != NULL)) begin_epoch(s);
  return LS_STAGE_OK;
}

static int take_rank(struct ls_stage* s, int64_t deadline) {
  struct ls_member* self = &s->segment.head->member[s->rank];
  if (ls_member_alive(self)) {
    return ls_stage_fail(LS_STAGE_REFUSED, "stream %s has a writer of rank %d already: process %d",
                         s->segment.head->name, s->rank, self->pid);
  }
  int result = ls_stream_lock(s, deadline);
  if (result != LS_STAGE_OK) return result;
  result = choose_epoch(s, self);
  if (result == LS_STAGE_OK) {
    self->epoch = s->head->epoch;
    self->cursor = -1;
    result = ls_member_enter(self, LS_MEMBER_WRITES);
    s->self = self;
  }
  ls_stream_unlock(s);
  return result;
}

static int join(struct ls_stage* s, const struct ls_stage_facts* facts, const struct ls_stage_options* how) {
  int result = ls_stream_find(s);
  if (result == LS_STAGE_OK) result = agree(s->segment.head->name, &s->head->facts, facts, how->spill != NULL);
  if (result != LS_STAGE_OK || how->spill == NULL) return result;
  s->spill = ls_spill_reopen(&s->head->facts);
  return s->spill < 0 ? LS_STAGE_REFUSED : LS_STAGE_OK;
}

static int open_in(struct ls_stage* s, const char* folder, const char* name, struct ls_stage_facts* facts,
                   const struct ls_stage_options* how, int64_t deadline) {
  int result = ls_segment_open(folder, name, LS_SEGMENT_STREAM, &s->segment);
  const bool fresh = result == LS_STAGE_ABSENT;
  if (fresh) {
    result = make(s, folder, name, facts, how);
  } else if (result == LS_STAGE_OK) {
    result = join(s, facts, how);
  }
  if (result == LS_STAGE_OK) result = take_rank(s, deadline);
  if (result == LS_STAGE_OK) return result;
  if (fresh && s->spill >= 0) unlink(how->spill);
  if (s->segment.head != NULL) ls_segment_drop(&s->segment);
  return result;
}

int ls_stage_open(const char* name, int rank, int ranks, int dtype, int ndim, const int64_t* shape,
                  const struct ls_stage_options* how, double timeout_s, struct ls_stage** stream) {
  struct ls_stage_facts facts = {0};
  int result = ls_stage_need(stream, "stream");
  if (result != LS_STAGE_OK) return result;
  *stream = NULL;
  result = take(name, rank, ranks, dtype, ndim, shape, how, &facts);
  if (result != LS_STAGE_OK) return result;
  struct ls_stage* s = ls_stream_new(rank);
  if (s == NULL) return LS_STAGE_REFUSED;
  char folder[LS_FOLDER];
  const int room = ls_room_enter(folder, timeout_s);
  result = room < 0 ? LS_STAGE_REFUSED : open_in(s, folder, name, &facts, how, ls_stage_deadline(timeout_s));
  if (room >= 0) ls_room_leave(room, folder);
  if (result == LS_STAGE_OK) {
    *stream = s;
  } else {
    ls_stream_free(s);
  }
  return result;
}
