/* With several nodes, a checkpoint that is whole on one node waits for the others, and ranks hold its memory meanwhile:
 * the agent must hear of it soon. So the rank whose copy makes it whole rings: a futex word of the board, counted up
 * and woken. Costs one system call per checkpoint and node, in the copying thread. The agent may sleep through any
 * number of rings; it looks at the board anyway now and then.
 */
#ifndef LOCKSTEP_CLIENT_BELL_H_
#define LOCKSTEP_CLIENT_BELL_H_

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/client/board.h"
#include "lockstep/client/commit.h"

static inline uint32_t* ls_bell_word(struct ls_board* board) { return (uint32_t*)&board->bell; }

static inline void ls_ring_bell(struct ls_board* board) {
  __atomic_add_fetch(ls_bell_word(board), 1, __ATOMIC_ACQ_REL);
  syscall(SYS_futex, ls_bell_word(board), FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* After this checkpoint is DONE in a slot of some rank. */
static inline void ls_ring_if_whole(struct ls_board* board, struct ls_checkpoint id) {
  if (board->ranks == board->world_size) return;
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* of two ranks that finish at once, one sees both */
  if (ls_committed(board, id)) ls_ring_bell(board);
}

#endif
