/* The commit rule: which checkpoints are complete everywhere, and which slot a rank may write next. Derived from the
 * board alone.
 *
 * A checkpoint is a pair (epoch, step). It is committed when every rank has a DONE slot with that very pair; C is the
 * newest committed one, ordered by epoch, then step. A pair is dead when it can never be committed: its epoch is over,
 * or some rank of its epoch has attempted that step (or a later one) and holds no slot with the pair, for steps only
 * grow within an epoch. A rank never writes the slot that holds C, nor one newer than C that is not dead: then it skips
 * the step.
 *
 * Invariant (commit_test.cc tries it on all interleavings of small jobs): once a checkpoint was committed, one is at
 * every moment. Why: the first rank to give up a committed p has seen a newer C (which is then complete), or has seen a
 * rank pass p without it; but that rank must have given p up before, or p was never committed. Both facts stay true, so
 * reading the board rank by rank is enough.
 *
 * Pins: the agent may pin the newest committed checkpoint, to read it in peace; ranks then skip steps rather than give
 * it up. Once ls_pin() has answered true, the checkpoint stays whole until ls_unpin(): a rank gives a committed one up
 * only after it has seen a newer one complete, which happened after ls_pin() looked, and so after the pin was there to
 * be seen.
 *
 * Several nodes: the board shows one node's ranks. What is whole on all of them is told to the agent, what is whole on
 * all nodes comes back (ls_publish), and a rank gives up only what is older than that, of an older epoch, or dead: some
 * rank, somewhere, has passed that step without it. Ranks hear the news at different steps, so that happens.
 *
 * Threads: each rank writes its own block, the agent the header; readers are lock-free. Cost: choosing reads 4
 * cache lines per rank.
 *
 *   int slot = ls_slot_choose(board, rank, epoch, step);
 *   if (slot >= 0) ls_slot_open(&block->slot[slot], epoch, step, world_size);
 *   ls_attempted(block, step);                       // after the slot is taken: who sees the attempt sees the slot
 *   ... copy ...; ls_slot_done(&block->slot[slot], bytes, meta_bytes, crc, proof);
 */
#ifndef LOCKSTEP_CLIENT_COMMIT_H_
#define LOCKSTEP_CLIENT_COMMIT_H_

#include <stdbool.h>
#include <stdint.h>

#include "lockstep/client/board.h"

struct ls_checkpoint {
  uint64_t epoch; /* 0: none */
  int64_t step;
};

static inline bool ls_same(struct ls_checkpoint a, struct ls_checkpoint b) {
  return a.epoch == b.epoch && a.step == b.step;
}
static inline bool ls_newer(struct ls_checkpoint a, struct ls_checkpoint b) {
  return a.epoch != b.epoch ? a.epoch > b.epoch : a.step > b.step;
}

/* One slot at one moment. */
struct ls_slot_view {
  bool changing; /* its writer is in the middle of renaming it (or died there): the rest is unknown */
  uint64_t state;
  struct ls_checkpoint id;
};

static inline bool ls_slot_try_read(const struct ls_slot* slot, struct ls_slot_view* view) {
  const uint64_t before = __atomic_load_n(&slot->sequence, __ATOMIC_ACQUIRE);
  view->changing = before % 2 == 1;
  view->state = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
  view->id.epoch = __atomic_load_n(&slot->epoch, __ATOMIC_ACQUIRE);
  view->id.step = __atomic_load_n(&slot->step, __ATOMIC_ACQUIRE);
  return view->changing || __atomic_load_n(&slot->sequence, __ATOMIC_RELAXED) == before;
}

/* A slot is renamed once per step, so a second try succeeds unless the reader slept through a whole step; then
 * "changing" is safe. */
static inline struct ls_slot_view ls_slot_read(const struct ls_slot* slot) {
  struct ls_slot_view view;
  for (int i = 0; i < 3; ++i) {
    if (ls_slot_try_read(slot, &view)) return view;
  }
  view.changing = true;
  return view;
}

static inline bool ls_slot_is_done(const struct ls_slot* slot, struct ls_checkpoint id) {
  const struct ls_slot_view view = ls_slot_read(slot);
  return !view.changing && view.state == LS_SLOT_DONE && ls_same(view.id, id);
}
/* True also when it cannot be known. */
static inline bool ls_slot_may_hold(const struct ls_slot* slot, struct ls_checkpoint id) {
  const struct ls_slot_view view = ls_slot_read(slot);
  if (view.changing) return true;
  return (view.state == LS_SLOT_DONE || view.state == LS_SLOT_WRITING) && ls_same(view.id, id);
}

/* The index of the slot, or -1. */
static inline int ls_slot_find(const struct ls_rank_block* block, struct ls_checkpoint id) {
  for (int i = 0; i < LS_SLOTS; ++i) {
    if (ls_slot_is_done(&block->slot[i], id)) return i;
  }
  return -1;
}

static inline bool ls_committed(const struct ls_board* board, struct ls_checkpoint id) {
  for (uint32_t r = 0; r < board->ranks; ++r) {
    if (ls_slot_find(&board->rank[r], id) < 0) return false;
  }
  return true;
}

/* A committed checkpoint is in every rank's slots, so those of one rank are all candidates. epoch 0: none is committed.
 */
static inline struct ls_checkpoint ls_newest_committed(const struct ls_board* board, uint32_t rank) {
  struct ls_checkpoint newest = {0, -1};
  for (int i = 0; i < LS_SLOTS; ++i) {
    const struct ls_slot_view view = ls_slot_read(&board->rank[rank].slot[i]);
    if (view.changing || view.state != LS_SLOT_DONE || !ls_newer(view.id, newest)) continue;
    if (ls_committed(board, view.id)) newest = view.id;
  }
  return newest;
}

static inline bool ls_rank_passed(const struct ls_rank_block* block, struct ls_checkpoint id) {
  if (__atomic_load_n(&block->epoch, __ATOMIC_ACQUIRE) != id.epoch) return false;
  if (__atomic_load_n(&block->attempted_step, __ATOMIC_ACQUIRE) < id.step) return false;
  return !ls_slot_may_hold(&block->slot[0], id) && !ls_slot_may_hold(&block->slot[1], id);
}

/* `epoch` is the caller's. */
static inline bool ls_dead(const struct ls_board* board, uint64_t epoch, struct ls_checkpoint id) {
  if (id.epoch != epoch) return true;
  for (uint32_t r = 0; r < board->ranks; ++r) {
    if (ls_rank_passed(&board->rank[r], id)) return true;
  }
  return false;
}

static inline bool ls_slot_is_free(struct ls_slot_view view) {
  return view.changing || view.state == LS_SLOT_EMPTY || view.state == LS_SLOT_BAD;
}

/* Of two slots, of which neither need hold C, the one to give up. */
static inline int ls_slot_victim(const struct ls_slot_view view[LS_SLOTS], struct ls_checkpoint committed) {
  for (int i = 0; i < LS_SLOTS; ++i) {
    const bool holds = !ls_slot_is_free(view[i]) && view[i].state == LS_SLOT_DONE && ls_same(view[i].id, committed);
    if (holds) return 1 - i;
  }
  if (ls_slot_is_free(view[0])) return 0;
  if (ls_slot_is_free(view[1])) return 1;
  return ls_newer(view[0].id, view[1].id) ? 1 : 0;
}

/* Epoch 0: none. Torn only while the agent changes it, when it means nothing yet, or nothing more. */
static inline struct ls_checkpoint ls_pinned(const struct ls_board* board) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* after whatever the caller has seen committed */
  const uint64_t epoch = __atomic_load_n(&board->pinned_epoch, __ATOMIC_ACQUIRE);
  return (struct ls_checkpoint){epoch, __atomic_load_n(&board->pinned_step, __ATOMIC_ACQUIRE)};
}

static inline void ls_unpin(struct ls_board* board) { __atomic_store_n(&board->pinned_epoch, 0, __ATOMIC_RELEASE); }

/* Of several nodes; torn only between two epochs, when no rank looks. */
static inline struct ls_checkpoint ls_published(const struct ls_board* board) {
  const uint64_t epoch = __atomic_load_n(&board->committed_epoch, __ATOMIC_ACQUIRE);
  return (struct ls_checkpoint){epoch, __atomic_load_n(&board->committed_step, __ATOMIC_ACQUIRE)};
}

/* What this board alone knows to be committed: of several nodes, the news of the coordinator. */
static inline struct ls_checkpoint ls_committed_here(const struct ls_board* board) {
  if (board->ranks == board->world_size) return ls_newest_committed(board, 0);
  const struct ls_checkpoint published = ls_published(board);
  return ls_committed(board, published) ? published : (struct ls_checkpoint){0, -1};
}

/* The agent's. False, and nothing is pinned: `id` is not the newest committed checkpoint (any more). */
static inline bool ls_pin(struct ls_board* board, struct ls_checkpoint id) {
  __atomic_store_n(&board->pinned_step, id.step, __ATOMIC_RELEASE);
  __atomic_store_n(&board->pinned_epoch, id.epoch, __ATOMIC_RELEASE);
  __atomic_thread_fence(__ATOMIC_SEQ_CST); /* seen by all before we look */
  if (id.epoch != 0 && ls_same(ls_committed_here(board), id)) return true;
  ls_unpin(board);
  return false;
}

/* ---- several nodes: no board shows all ranks, so the coordinator says what is committed. ---- */

/* The agent's: newer ones only, but for the one from which an epoch begins. */
static inline void ls_publish(struct ls_board* board, struct ls_checkpoint id, int64_t dead_step, int64_t meet_from) {
  __atomic_store_n(&board->meet_from, meet_from, __ATOMIC_RELEASE);
  __atomic_store_n(&board->dead_step, dead_step, __ATOMIC_RELEASE);
  __atomic_store_n(&board->committed_step, id.step, __ATOMIC_RELEASE);
  __atomic_store_n(&board->committed_epoch, id.epoch, __ATOMIC_RELEASE);
}

/* May a rank of `epoch` give up this checkpoint? `published` is whole on all nodes; of this epoch, no other one up to
 * dead_step can become so any more. So what a node has said to hold, and may still matter, stays true until a newer one
 * is whole everywhere, and the news may be late. */
static inline bool ls_can_give_up(struct ls_checkpoint held, struct ls_checkpoint published, int64_t dead_step,
                                  uint64_t epoch) {
  if (ls_newer(published, held)) return true;
  if (ls_same(held, published)) return false;
  return held.epoch < epoch || (held.epoch == epoch && held.step <= dead_step);
}

/* Is this a step for which ranks should meet? What one rank skips can't become whole, and where the news of a commit
 * takes many steps, or reaches some nodes late, every node has room for a different step: then none ever becomes whole.
 * So, the longer nothing did, the rarer are the steps that are tried, and all try the same: those whose number, counted
 * in attempts, is a multiple of a growing power of two. `previous`: the attempt before; -1: none in this epoch.
 * `meet_from`: until that step somebody's agent was away, so that nothing could become whole, whatever was tried. */
static inline bool ls_is_meeting(int64_t step, int64_t previous, struct ls_checkpoint published, int64_t meet_from) {
  if (previous < 0) return true;
  const int64_t since = published.step > meet_from ? published.step : meet_from;
  const int64_t stride = step - previous, gap = (step - since) / stride;
  if (gap < 8) return true;
  int64_t grid = 4;
  while (4 * grid <= gap) grid *= 2;
  return step / stride % grid == 0;
}

/* The oldest slot that may be given up, or -1. */
static inline int ls_slot_choose_afar(const struct ls_board* board, const struct ls_rank_block* block, uint64_t epoch) {
  const struct ls_checkpoint published = ls_published(board);
  const int64_t dead_step = __atomic_load_n(&board->dead_step, __ATOMIC_ACQUIRE);
  int chosen = -1;
  struct ls_checkpoint oldest = {0, -1};
  for (int i = 0; i < LS_SLOTS; ++i) {
    const struct ls_slot_view view = ls_slot_read(&block->slot[i]);
    if (ls_slot_is_free(view)) return i;
    if (!ls_can_give_up(view.id, published, dead_step, epoch) || ls_same(view.id, ls_pinned(board))) continue;
    if (chosen >= 0 && !ls_newer(oldest, view.id)) continue;
    chosen = i;
    oldest = view.id;
  }
  return chosen;
}

/* The slot in which the rank of block `rank` is to write (epoch, step), or -1: skip this step. */
static inline int ls_slot_choose(const struct ls_board* board, uint32_t rank, uint64_t epoch, int64_t step) {
  const struct ls_rank_block* block = &board->rank[rank];
  const struct ls_checkpoint wanted = {epoch, step};
  /* A step not above the last one would break "steps only grow"; a dead one is not worth the copy. */
  if (step <= __atomic_load_n(&block->attempted_step, __ATOMIC_RELAXED) || ls_dead(board, epoch, wanted)) return -1;
  if (board->ranks != board->world_size) {
    const int64_t previous = __atomic_load_n(&block->attempted_step, __ATOMIC_RELAXED);
    const int64_t meet_from = __atomic_load_n(&board->meet_from, __ATOMIC_ACQUIRE);
    if (!ls_is_meeting(step, previous, ls_published(board), meet_from)) return -1;
    return ls_slot_choose_afar(board, block, epoch);
  }
  const struct ls_checkpoint committed = ls_newest_committed(board, rank);
  const struct ls_slot_view view[LS_SLOTS] = {ls_slot_read(&block->slot[0]), ls_slot_read(&block->slot[1])};
  const int victim = ls_slot_victim(view, committed);
  if (!ls_slot_is_free(view[victim]) && ls_same(view[victim].id, ls_pinned(board))) return -1;
  if (ls_slot_is_free(view[victim]) || !ls_newer(view[victim].id, committed)) return victim;
  return ls_dead(board, epoch, view[victim].id) ? victim : -1;
}

/* Takes the slot for a new checkpoint. A writer that died here left an odd sequence; it stays odd until the renaming is
 * done. */
static inline void ls_slot_open(struct ls_slot* slot, uint64_t epoch, int64_t step, uint32_t world_size) {
  const uint64_t odd = __atomic_load_n(&slot->sequence, __ATOMIC_RELAXED) / 2 * 2 + 3;
  __atomic_store_n(&slot->sequence, odd, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->state, LS_SLOT_WRITING, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->epoch, epoch, __ATOMIC_RELEASE);
  __atomic_store_n(&slot->step, step, __ATOMIC_RELEASE);
  slot->world_size = world_size;
  __atomic_store_n(&slot->sequence, odd + 1, __ATOMIC_RELEASE);
}

static inline void ls_attempted(struct ls_rank_block* block, int64_t step) {
  __atomic_store_n(&block->attempted_step, step, __ATOMIC_RELEASE);
}

static inline void ls_slot_done(struct ls_slot* slot, uint64_t bytes, uint64_t meta_bytes, uint32_t crc,
                                uint32_t proof) {
  slot->bytes = bytes;
  slot->meta_bytes = meta_bytes;
  slot->crc32c = crc;
  slot->proof = proof;
  __atomic_store_n(&slot->state, LS_SLOT_DONE, __ATOMIC_RELEASE);
}

/* A new worker takes over its block: nothing attempted yet in this epoch, said before the epoch is. */
static inline void ls_block_begin_epoch(struct ls_rank_block* block, uint64_t epoch) {
  __atomic_store_n(&block->attempted_step, -1, __ATOMIC_RELAXED);
  __atomic_store_n(&block->epoch, epoch, __ATOMIC_RELEASE);
}

#endif
