/* How a stream lies in its segment: members (one per rank, then readers), a head, slots, and the parts. All of it but
 * the parts changes under `lock`, a robust mutex: when its owner died, whoever comes next settles what it left.
 *
 * A slot goes FREE -> WRITING -> (FLUSHING) -> SHOWN -> FREE, or SHOWN -> RETIRED -> FREE where readers hold it. The
 * store to `state` comes last in each of these, so a process killed anywhere leaves a slot before or after it.
 */
#ifndef LOCKSTEP_STAGE_STREAM_H_
#define LOCKSTEP_STAGE_STREAM_H_

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "lockstep/stage/segment.h"
#include "lockstep/stage/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_READERS = 64, LS_STAGE_DIMS = 8, LS_STAGE_RANKS = 4096, LS_STAGE_SLOTS = 1 << 16 };
enum { LS_LEASE_NS = 50 * 1000 * 1000 }; /* who waits looks this often whether the others are alive */
enum ls_slot_state {
  LS_SLOT_FREE = 0,
  LS_SLOT_WRITING = 1,
  LS_SLOT_FLUSHING = 2,
  LS_SLOT_SHOWN = 3,
  LS_SLOT_RETIRED = 4
};
enum ls_member_state { LS_MEMBER_NONE = 0, LS_MEMBER_WRITES = 1, LS_MEMBER_CLOSED = 2, LS_MEMBER_READS = 3 };
#define LS_NO_PLACE UINT32_MAX

struct ls_slot {
  uint32_t state;
  uint32_t place; /* reservoir: of k; else 0. LS_NO_PLACE: not kept */
  int64_t step, index;
  uint64_t epoch; /* of its writers */
  uint64_t held;  /* a bit per reader */
  uint32_t taken; /* by any reader, ever */
  uint32_t reserved[5];
};

struct ls_stream_head {
  pthread_mutex_t lock;
  uint32_t shown, freed; /* futexes: of readers, of writers */
  uint32_t slots, readers_expected, readers_ever, padding;
  uint64_t epoch;
  int64_t last_step; /* visible */
  int64_t next_index;
  uint64_t seed;
  uint64_t slot_stride;
  struct ls_stage_facts facts; /* what all agreed on, and the counters */
};

struct ls_stage {
  struct ls_segment segment;
  struct ls_stream_head* head;
  struct ls_slot* slots;
  uint8_t* committed; /* [slots][ranks] */
  char* parts;
  struct ls_member* self;
  int pid, rank;      /* rank -1: a reader */
  uint32_t open_slot; /* reserved and not committed; LS_NO_PLACE: none */
  int spill;          /* file descriptor, -1: none */
  uint32_t* holds;    /* readers: how often each slot was got */
  int64_t looked;     /* when it last looked whether the others are alive */
};

/* SIZE_MAX: more than any memory has. */
size_t ls_stream_bytes(uint32_t ranks, uint32_t slots, uint64_t slot_stride);
/* Finds the pieces in the mapped segment. */
void ls_stream_locate(struct ls_stage*);
/* The same of one that others made: LS_STAGE_REFUSED if its size is not what it says of itself. */
int ls_stream_find(struct ls_stage*);
int ls_stream_lock(struct ls_stage*, int64_t deadline);
void ls_stream_unlock(struct ls_stage*);
/* A handle that is open from now on; NULL: ls_stage_last_error(). */
struct ls_stage* ls_stream_new(int rank);
/* Which is closed from the first on, and gone with the second. */
void ls_stream_shut(struct ls_stage*);
void ls_stream_free(struct ls_stage*);
/* Whether it is open, in whatever process it was opened. */
bool ls_stream_is_open(const struct ls_stage*);
/* LS_STAGE_OK if this process opened it, and has not closed it. */
int ls_stream_owner(const struct ls_stage*, bool writes);

static inline struct ls_member* ls_reader(const struct ls_stage* s, uint32_t i) {
  return &s->segment.head->member[(uint32_t)s->head->facts.ranks + i];
}
/* Whether a living reader has yet to come to this step. */
bool ls_slot_wanted(const struct ls_stage*, const struct ls_slot*);
/* Whether this writer of the current epoch is gone without closing. */
bool ls_writer_died(const struct ls_stage*, const struct ls_member*);
/* Readers that died hold nothing any more. Whether there were any. */
bool ls_reap_readers(struct ls_stage*);
/* Whether a look at the others, which costs some 10 us for each, is due; then it counts as taken. */
bool ls_look_is_due(struct ls_stage*);
void ls_drop_reader(struct ls_stage*, uint32_t i);

/* ---- policies ---- */

/* Where algorithm R puts the step of this index: below k, or LS_NO_PLACE. A pure function of its arguments. */
uint32_t ls_reservoir_place(uint64_t seed, uint64_t index, uint32_t k);
/* Makes a complete step visible and retires what the policy has no room for. */
void ls_show(struct ls_stage*, struct ls_slot*);
/* Brings everything under `lock` to where an uninterrupted change would have ended. */
void ls_settle(struct ls_stage*);
/* A slot to write into, now; NULL: none. */
struct ls_slot* ls_room_for_step(struct ls_stage*);

/* ---- the spill file ---- */

int ls_spill_create(const char* path, const struct ls_stage_facts*);
int ls_spill_reopen(const struct ls_stage_facts*);
/* 0, or errno; a file that could not take it ends with the step before. */
int ls_spill_append(int fd, const struct ls_stage_facts*, uint64_t count, int64_t step, const void* parts);

#ifdef __cplusplus
}
#endif
#endif
