/* The trail that a process keeps of itself, where its environment asks for one.
 *
 *   LOCKSTEP_TRAILS   directory for the trails; unset: nothing is kept
 *   RANK, WORLD_SIZE  who this is, as torchrun and Lockstep set them; else what Open MPI, PMI or Slurm say
 *   LOCKSTEP_EPOCH    0 where unset
 */
#ifndef LOCKSTEP_RECORD_OWN_TRAIL_H_
#define LOCKSTEP_RECORD_OWN_TRAIL_H_

#include "lockstep/record/trail.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A new file, of so many cells, on behalf of `source` ("gloo", "feed"). `rank` and `size` stand for what the
 * environment does not say. NULL: none is wanted, or it can't be had, of which one line on stderr says why, and of what
 * the rank tells nothing then ("communication"). */
struct ls_trail* ls_trail_create_own(const char* source, const char* of_what, int rank, int size, uint32_t capacity);

#ifdef __cplusplus
}
#endif
#endif
