/* What the collectors of a process share: its trail, made when the first communicator is, where the environment says
 * so (record/own_trail.h).
 *
 * Invariants: nothing here blocks on other processes, allocates, or fails the caller: without a trail there is nothing
 * to tell. A forked child begins without one. Threads: any.
 */
#ifndef LOCKSTEP_COLLECT_COLLECTOR_H_
#define LOCKSTEP_COLLECT_COLLECTOR_H_

#include "lockstep/record/trail.h"

/* The trail of this process; NULL: none yet, or none wanted. */
struct ls_trail* ls_collect_trail(void);
/* Makes it where there is none and one is wanted. One line on stderr says why one that is wanted can't be had. `rank`
 * and `size`, of the communicator that is being made, stand for what the environment does not say, or can't mean. */
struct ls_trail* ls_collect_begin(const char* source, int rank, int size);

/* Index of a new communicator in the trail; -1: no room, which one line on stderr says once and the trail counts. */
int ls_collect_communicator(struct ls_trail*, uint64_t key);

int64_t ls_collect_now(void); /* CLOCK_BOOTTIME, ns */

/* An op is launched: fills the record in, as readers then see it. Of a send or receive, the peer is the caller's. */
ls_handle ls_collect_launched(struct ls_trail*, struct ls_record* op, uint32_t communicator, uint8_t function);
static inline bool ls_collect_is_transfer(uint8_t function) { return function == LS_SEND || function == LS_RECEIVE; }

/* It ended now: pushes it. The place is the caller's to close. */
void ls_collect_ended(struct ls_trail*, struct ls_record* op, uint8_t state, int64_t now_ns);
/* It is over, and what there is to say of it was said. */
void ls_collect_count_ended(struct ls_trail*, const struct ls_record* op);
/* It has waited for a message outside of collectives until now: for so long it was not by itself. */
void ls_collect_waited(struct ls_trail*, int64_t begin_ns, int64_t now_ns);

#endif
