/* The trail that a process keeps of itself, where its environment asks for one.
 *
 *   LOCKSTEP_TRAILS   directory for the trails; unset: nothing is kept
 *   RANK, WORLD_SIZE  who this is, as torchrun and Lockstep set them; else what Open MPI, PMI or Slurm say. Not if a
 *                     communicator is larger than that job: then its place in the largest
 *   LOCKSTEP_EPOCH    0 where unset; looked at anew by each call
 */
#ifndef LOCKSTEP_RECORD_OWN_TRAIL_H_
#define LOCKSTEP_RECORD_OWN_TRAIL_H_

#include "lockstep/record/trail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One for each library that tells something: static, and zero before the first call. A forked child begins anew. */
struct ls_own_trail {
  struct ls_trail* trail;
  int tried;
  struct ls_own_trail* next; /* of those that a child forgets */
};

/* NULL: none has been made. */
static inline struct ls_trail* ls_own_trail_made(struct ls_own_trail* own) {
  return __atomic_load_n(&own->trail, __ATOMIC_ACQUIRE);
}
/* The first call makes it, a file of so many cells, on behalf of `source` ("gloo", "feed"); any thread. `rank` and
 * `size` stand for what the environment does not say. NULL: none is wanted, or it can't be had, of which one line on
 * stderr says why, and of what the rank tells nothing then ("communication"). Leaves errno as it is. */
struct ls_trail* ls_own_trail_make(struct ls_own_trail* own, const char* source, const char* of_what, int rank,
                                   int size, uint32_t capacity);

#ifdef __cplusplus
}
#endif
#endif
