/* A worker's sign of life: a robust mutex in its block, held by the thread that joined. The kernel marks it when that
 * thread begins to end, before it takes the address space apart: of a process with 3 GB the end is known after 0.2 ms,
 * its exit status by wait(2) after 0.4 s (measured on CPU). A mark may also mean that the thread alone ended: who reads
 * one asks /proc. Threads: begin and end are the joined thread's; the reader needs only the futex word.
 */
#ifndef LOCKSTEP_CLIENT_LIFE_H_
#define LOCKSTEP_CLIENT_LIFE_H_

#include <stdbool.h>
#include <stdint.h>

#include "lockstep/client/board.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes the mutex. Without effect where the C library can't make one. */
void ls_life_begin(struct ls_rank_block*);
/* Gives it back. False: another thread holds it, and the block must stay mapped for as long as that thread lives. */
bool ls_life_end(struct ls_rank_block*);

#ifdef __cplusplus
}
#endif

/* What lies in the futex word: FUTEX_OWNER_DIED, FUTEX_WAITERS, and the id of the thread that holds it (futex(2)). */
static inline uint32_t* ls_life_word(struct ls_rank_block* block) { return (uint32_t*)block->life; }

#endif
