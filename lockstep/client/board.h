/* The board: one shared memory object per job and node, mapped by every worker, the starter and the agent.
 * It holds each rank's step clock and the headers of its two checkpoint buffers ("slots"); commits are derived from it,
 * not recorded. Byte-exact layout: docs/formats/board.md.
 *
 * Invariants: a block is written by its own rank only (the header by the agent only, but for the bell); a slot's fields
 * are valid when `state` reads DONE with acquire order; (epoch, step) names a checkpoint, and two epochs never mix.
 * Threads: all fields shared between processes are atomics or are published by one. C17 and C++20; libc only.
 */
#ifndef LOCKSTEP_CLIENT_BOARD_H_
#define LOCKSTEP_CLIENT_BOARD_H_

#include <stddef.h>
#include <stdint.h>

#define LS_BOARD_MAGIC 0x31304452414f424cULL /* "LBOARD01" in memory, little endian */
#define LS_BOARD_VERSION 1u
#define LS_SLOTS 2

/* Accessed with the __atomic builtins only, so that C and C++ agree on the layout. */
typedef uint64_t ls_atomic_u64;
typedef int64_t ls_atomic_i64;

enum ls_slot_state { LS_SLOT_EMPTY = 0, LS_SLOT_WRITING = 1, LS_SLOT_DONE = 2, LS_SLOT_BAD = 3 };

/* 64 bytes. One checkpoint buffer of one rank. */
struct ls_slot {
  ls_atomic_u64 state; /* enum ls_slot_state; stored last with release order */
  uint64_t epoch;      /* who wrote it */
  int64_t step;        /* the step after which the state was taken */
  uint64_t bytes;      /* of the whole content: meta, then tensors */
  uint64_t meta_bytes; /* of the leading meta part */
  uint32_t crc32c;     /* of all `bytes` */
  uint32_t world_size;
  ls_atomic_u64
      sequence;   /* odd while the fields above are being changed (commit.h): a reader who saw two values reads again */
  uint32_t proof; /* of freshness: proof.h; 0: none is known */
  uint32_t reserved;
};

enum ls_phase {
  LS_PHASE_NONE = 0,
  LS_PHASE_STARTED = 1,
  LS_PHASE_RESTORED = 2,
  LS_PHASE_STEPPING = 3,
  LS_PHASE_FINISHED = 4
};

enum ls_other_worlds {
  LS_WORLDS_UNSAID = 0,
  LS_WORLDS_REPLICA = 1, /* the state of any rank is right for any other */
  LS_WORLDS_CUT = 2      /* the script cuts it anew, from what all ranks have on disk */
};

/* 512 bytes. Times are nanoseconds on CLOCK_BOOTTIME. */
struct ls_rank_block {
  ls_atomic_u64 epoch; /* the epoch whose worker owns this block now; 0 = nobody yet */
  ls_atomic_i64 pid;
  ls_atomic_u64 phase;          /* enum ls_phase */
  ls_atomic_i64 step;           /* last finished step; -1 before the first */
  ls_atomic_i64 step_end_ns;    /* when that step finished */
  ls_atomic_i64 step_time_ns;   /* how long it took */
  ls_atomic_i64 loop_begin_ns;  /* when restore() returned (or the first step() was seen): the training loop begins */
  ls_atomic_i64 attempted_step; /* last step for which this rank took or skipped a checkpoint, in `epoch` */
  ls_atomic_u64 loss_bits;      /* the bits of a double; NaN = not given */
  ls_atomic_u64 copies, skipped, torn; /* checkpoints taken, skipped (the newer slot was not yet committed, or the loss
                                          is no number), spoilt by a late write */
  ls_atomic_u64 blocked_ns;            /* time step() and optimizer.step waited for copies, summed */
  ls_atomic_u64 dropped;               /* records dropped because a ring was full */
  uint64_t life[8];                    /* a robust mutex, held by the thread that joined: life.h */
  ls_atomic_i64 steps; /* finished since loop_begin_ns: (step_end_ns - loop_begin_ns) / steps is their mean time */
  ls_atomic_u64 other_worlds; /* enum ls_other_worlds: what the script says of its state in a world of another size */
  /* Steps whose loss was a finite number, and 1: the first of `epoch`, and the newest; 0: none. */
  ls_atomic_i64 first_finite, newest_finite;
  uint64_t reserved[6];
  struct ls_slot slot[LS_SLOTS];
  uint64_t reserved_end[16];
};

/* 512 bytes, then `ranks` blocks: those of this node. */
struct ls_board {
  uint64_t magic;
  uint32_t version, ranks;
  ls_atomic_u64 epoch; /* the one epoch that may act: writers of any other stop */
  /* What the workers of `restore_for` are to load: published by the agent, awaited by ls_restore_point(). */
  ls_atomic_u64 restore_for; /* stored last with release order */
  uint64_t restore_epoch;    /* 0 = begin afresh */
  int64_t restore_step;
  /* The checkpoint that the agent is reading and that no rank gives up meanwhile (commit.h). */
  ls_atomic_u64 pinned_epoch; /* 0: none */
  ls_atomic_i64 pinned_step;
  /* The ranks of this node are first_rank .. first_rank + ranks - 1 of the world_size ranks of the job. */
  uint32_t first_rank, world_size;
  /* With several nodes: the newest checkpoint that is whole on all of them, as the coordinator has said (commit.h). */
  ls_atomic_u64 committed_epoch; /* 0: none */
  ls_atomic_i64 committed_step;
  ls_atomic_i64
      dead_step;      /* of the acting epoch: no other checkpoint up to this step can still become whole; -1: none */
  ls_atomic_u64 bell; /* rung by ranks: bell.h */
  uint64_t restore_ranks; /* not 0: what is to be restored is on disk, so many ranks wrote it, and the script cuts it */
  ls_atomic_i64 meet_from; /* with several nodes: where the acting epoch stood when the last agent that was away came
                              back; 0: none was (commit.h) */
  uint64_t reserved[49];
  struct ls_rank_block rank[];
};

#ifdef __cplusplus
#define LS_STATIC_ASSERT static_assert
#else
#define LS_STATIC_ASSERT _Static_assert
#endif
LS_STATIC_ASSERT(sizeof(struct ls_slot) == 64, "docs/formats/board.md");
LS_STATIC_ASSERT(sizeof(struct ls_rank_block) == 512, "docs/formats/board.md");
LS_STATIC_ASSERT(offsetof(struct ls_board, rank) == 512, "docs/formats/board.md");

static inline size_t ls_board_bytes(uint32_t ranks) {
  return sizeof(struct ls_board) + ranks * sizeof(struct ls_rank_block);
}

#endif
