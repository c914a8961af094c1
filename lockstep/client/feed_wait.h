/* A rank waits for a batch of its data service (feed_ring.h): a record of kind "data" says how long and what for, in a
 * trail of its own (record/trail.h; library "feed") where LOCKSTEP_TRAILS asks for trails. While it waits, readers see
 * that it does. A batch that is there when it is wanted leaves no record. What the script's own functions then make of
 * a batch takes time too, which is told likewise.
 *
 * Invariants: nothing here blocks, fails the caller, or does anything where no trail is wanted. Threads: any; a wait
 * belongs to one. A forked child has a trail of its own. C17 and C++20; libc and pthread only.
 *
 *   struct ls_feed_wait wait;
 *   ls_feed_wait_begin(&wait, "photos", rank, world);
 *   ls_feed_wait_gone(&wait); ... ls_feed_wait_joined(&wait);   // the service died, and another one has been joined
 *   ls_feed_wait_end(&wait, ring, slot);                        // -1: in vain
 */
#ifndef LOCKSTEP_CLIENT_FEED_WAIT_H_
#define LOCKSTEP_CLIENT_FEED_WAIT_H_

#include "lockstep/client/feed_ring.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* 56 bytes; the caller's, who looks at none of it. */
struct ls_feed_wait {
  uint64_t place;    /* of the trail */
  int64_t begin_ns;  /* CLOCK_BOOTTIME */
  int64_t lost_ns;   /* since when there is no service; 0: there is one */
  int64_t joined_ns; /* when there was one again */
  int64_t gone_ns;   /* how long there was none, until joined_ns */
  char data_set[16];
};

LS_STATIC_ASSERT(sizeof(struct ls_feed_wait) == 56, "python/lockstep/_feed_wait.py");

/* `rank` and `world` of the job, where the environment does not say (record/own_trail.h). */
void ls_feed_wait_begin(struct ls_feed_wait*, const char* data_set, int rank, int world);
void ls_feed_wait_gone(struct ls_feed_wait*);
void ls_feed_wait_joined(struct ls_feed_wait*);
/* `slot`: of the ring, what ls_feed_await() gave; -1: the wait was in vain. */
void ls_feed_wait_end(struct ls_feed_wait*, const struct ls_feed_ring* ring, int slot);
/* The script's own functions have run on a batch for the last `ns`. */
void ls_feed_functions_ran(const char* data_set, int rank, int world, int64_t ns);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
