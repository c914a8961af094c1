/* What one worker process keeps between calls of client.h: internal to this part. session.c joins, leaves and runs the
 * step clock; buffers.c maps the two slots; save.c and copy_thread.c fill one; restore.c reads one.
 *
 * Invariants: at most one save is under way; between submit and the copy thread's last word the pieces belong to the
 * copy thread. After a fork nothing but `pid` is touched by the child: no lock, no mapping, no thread of the parent's
 * is used.
 */
#ifndef LOCKSTEP_CLIENT_SESSION_H_
#define LOCKSTEP_CLIENT_SESSION_H_

#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "lockstep/client/board.h"
#include "lockstep/client/client.h"
#include "lockstep/client/commit.h"
#include "lockstep/client/device.h"
#include "lockstep/client/proof.h"
#include "lockstep/client/starter.h"
#include "lockstep/record/ring.h"

/* One tensor (or the meta) on its way into the slot. */
struct ls_piece {
  uint64_t offset; /* in the slot */
  const void* from;
  uint64_t bytes;
  enum ls_device device;
  bool copied; /* by the training thread, or by its stream: only the CRC is missing */
};

struct ls_save {
  struct ls_checkpoint id;
  bool open; /* between begin and submit: the training thread's */
  int slot;
  char* base;   /* of the slot */
  uint64_t end; /* bytes laid out so far */
  uint64_t meta_bytes;
  uint32_t crc; /* of the first `summed` bytes, */
  uint64_t summed;
  size_t next; /* which end before this piece */
  struct ls_piece* piece;
  size_t pieces, capacity;
  void* stream;
  bool cuda;        /* some piece is on a CUDA device */
  int64_t begun_ns; /* when the training thread entered begin() */
  struct ls_witness witness;
};

enum ls_copier_state { LS_COPIER_IDLE, LS_COPIER_BUSY };

struct ls_copier {
  bool is_open; /* the training thread's; all else is guarded by the mutex */
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  enum ls_copier_state state;
  bool ends;             /* the client is to go; atomic, for it is read in the middle of a copy */
  bool wanted;           /* training waits for the copy: no time to lose */
  enum ls_result result; /* of the last copy; taken by wait */
  /* The training thread's: how long it waited for the copy under way, for how many in a row it waited long, and
     whether that makes the next threads others. */
  int64_t waited_ns;
  int long_waits;
  bool starved;
  bool torn; /* spoilt while it ran: must not become DONE */
};

struct ls_buffers {
  char* slot[LS_SLOTS];
  uint64_t slot_bytes; /* 0: none yet */
  bool pin_tried, pinned;
};

struct ls_client {
  pid_t pid;
  struct ls_starter starter;
  uint32_t rank, world_size; /* in the job */
  uint32_t index;            /* of our block on the board */
  uint64_t epoch;
  struct ls_board* board;
  struct ls_rank_block* block;
  struct ls_ring* ring;
  size_t board_bytes, ring_bytes;
  struct ls_buffers buffers;
  struct ls_save save;
  struct ls_copier copier;
  const struct ls_device_ops* cuda;
  bool alive;              /* the joined thread holds the block's life mutex */
  int64_t last_end_ns;     /* of the step before; 0 = none */
  int64_t blocked_step_ns; /* of the step that runs */
  int part;                /* enum ls_part, since mark_ns */
  int64_t mark_ns;
  int64_t part_ns[LS_PARTS]; /* of the step that runs */
  uint32_t forwards;
  int64_t bad_steps; /* since its loss was a finite number last; 0: it is one, or none was ever told */
  int64_t bad_since_ns;
};

/* Remembers the text and returns `result`. */
int ls_fail(int result, const char* format, ...) __attribute__((format(printf, 2, 3)));
int64_t ls_now_ns(void); /* CLOCK_BOOTTIME */
/* False also in a child that forked after joining. */
bool ls_is_joined(const struct ls_client*);
/* False: another epoch is current, and this process must not write any more. */
bool ls_is_current(const struct ls_client*);
/* The state is worth nothing, as far as its loss tells: what the slots hold from before is not to be given up for it.
 */
bool ls_loss_is_bad(const struct ls_client*);
/* The time since then, which it has added. */
int64_t ls_add_blocked(struct ls_client*, int64_t since_ns);
void ls_count(ls_atomic_u64* counter); /* one writer */

void ls_buffers_free(struct ls_client*);
/* For CUDA, once; buffers that can't be pinned stay as they are. */
void ls_buffers_pin(struct ls_client*);
/* Before the first save; again: does nothing. */
void ls_copier_open(struct ls_client*);
/* Waits for the copy under way. */
void ls_copier_close(struct ls_client*);
/* A thread does ls_save_finish() from now on. False: none can be had. */
bool ls_copier_take(struct ls_client*);
/* Copies what is left of the save and closes its slot. */
enum ls_result ls_save_finish(struct ls_client*);

#endif
