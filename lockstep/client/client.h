/* liblockstep-client.so: what runs inside a worker. C ABI, libc and pthread only (CUDA by dlopen).
 * Never harms the job: no call aborts, throws or blocks without a bound; trouble is a return code and a counter. A call
 * made in a process that was not launched by Lockstep answers LS_NOT_JOINED at once, and so does a child that forked
 * after ls_join(). Threads: one training thread per process calls these; the copy thread is ours.
 *
 *   struct ls_client* c = ls_join();             // NULL: not under Lockstep, or refused: ls_last_error()
 *   ls_buffers(c, bytes);
 *   ls_save_begin(c, step, meta, meta_bytes);    // LS_SKIPPED: nothing to do this step
 *   ls_save_add(c, device, source, bytes) ...    // in the order in which the tensors lie behind the meta part
 *   ls_save_submit(c);                           // the copy thread goes on beside forward and backward
 *   ls_save_wait(c);                             // before optimizer.step
 */
#ifndef LOCKSTEP_CLIENT_CLIENT_H_
#define LOCKSTEP_CLIENT_CLIENT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum ls_result {
  LS_OK = 0,
  LS_NOT_JOINED = 1,
  LS_SKIPPED = 2, /* this step's checkpoint is left out; counted in the board */
  LS_REFUSED = 3, /* no memory for the buffers, stale epoch, wrong world size: ls_last_error() says which */
  LS_FRESH = 4,   /* restore: there is nothing to restore, begin at the beginning */
  LS_CORRUPT = 5, /* restore: the CRC does not match; the slot is now marked BAD */
  LS_TIMEOUT = 6,
  LS_STALE = 7,   /* what was copied is not what step() saw: counted as torn, and never DONE */
  LS_ON_DISK = 8, /* restore: ls_restore_on_disk() says which checkpoint on disk the script is to cut anew */
};

enum ls_device { LS_DEVICE_CPU = 0, LS_DEVICE_CUDA = 1 };

struct ls_client;

/* Joins by environment (join.h). One per process; a second call, also after fork, joins anew for the caller's pid. NULL
 * on failure; so it is in a child of the process that has joined as this rank, while that lives. */
struct ls_client* ls_join(void);
/* The training loop of this rank is done: waits for its copy, says LS_PHASE_FINISHED, frees everything. */
void ls_leave(struct ls_client*);
/* The text of the last failure in this process; "" if none. Valid until the next failing call. */
const char* ls_last_error(void);

int ls_rank(const struct ls_client*);

/* Step clock: the training loop begins now (after restore), and step `step` has just finished. loss: NaN if unknown,
 * infinite if it is no finite number. */
void ls_loop_begin(struct ls_client*, int64_t last_step);
void ls_step(struct ls_client*, int64_t step, double loss);
/* What the script is at from now on, until the next mark: its step's record tells how long it was at each,
 * if there was one forward in it. Optional. */
enum ls_part {
  LS_PART_OTHER = 0,
  LS_PART_DATA = 1,
  LS_PART_FORWARD = 2,
  LS_PART_BACKWARD = 3,
  LS_PART_OPTIMIZER = 4,
  LS_PART_SAVE = 5, /* from ls_step() on, until the first mark */
  LS_PARTS
};
void ls_mark(struct ls_client*, int part);

/* What the script says of its state in a world of another size: enum ls_other_worlds. */
void ls_say_other_worlds(struct ls_client*, int what);

/* Makes room for `bytes` per slot: maps, pre-faults. Call again with more bytes when the state has grown. */
int ls_buffers(struct ls_client*, uint64_t bytes);
/* For how many bytes per slot there is room now: what an earlier epoch made is there again after ls_restore_point(). */
uint64_t ls_slot_capacity(const struct ls_client*);

/* The tensor part begins at ls_align(meta_bytes), and each tensor at the next such offset; zeros between. */
#define LS_TENSOR_ALIGN 64u
static inline uint64_t ls_align(uint64_t offset) {
  return (offset + LS_TENSOR_ALIGN - 1) / LS_TENSOR_ALIGN * LS_TENSOR_ALIGN;
}

/* Saving. begin copies `meta` at once; add_now copies at once (what forward mutates); add queues for the copy thread
 * (what only the optimizer writes). Sources must stay valid and unwritten until wait. */
int ls_save_begin(struct ls_client*, int64_t step, const void* meta, uint64_t meta_bytes);
int ls_save_add_now(struct ls_client*, enum ls_device, const void* source, uint64_t bytes);
int ls_save_add(struct ls_client*, enum ls_device, const void* source, uint64_t bytes);
/* Many at once, for callers to whom a call is dear. */
int ls_save_add_many(struct ls_client*, enum ls_device, const void* const* sources, const uint64_t* bytes,
                     size_t count);
/* CUDA: copies of this save come after what the CUstream `stream` holds when ls_save_submit() is called. NULL, the
 * legacy default stream, unless said. */
int ls_save_stream(struct ls_client*, void* stream);
int ls_save_submit(struct ls_client*);
/* Instead of submit: copies in the calling thread, and the slot is DONE. */
int ls_save_here(struct ls_client*);
/* Returns when this rank's copy is complete (its slot DONE). LS_OK too if none is under way. LS_STALE: it was thrown
 * away. */
int ls_save_wait(struct ls_client*);
/* The sources changed under the copy: the slot becomes EMPTY and is counted as torn. Call after wait, or instead of it.
 */
void ls_save_spoil(struct ls_client*);

/* Restoring. Waits (at most timeout_s) for the agent to publish the restore point of this epoch. On LS_OK the slot is
 * found and its CRC was verified: *meta points into it, and tensors follow. Valid until the next ls_save_begin. */
int ls_restore_point(struct ls_client*, double timeout_s, int64_t* step, const void** meta, uint64_t* meta_bytes,
                     const void** tensors, uint64_t* tensor_bytes);
/* After LS_ON_DISK: the epoch of that checkpoint, whose step was told, and how many ranks wrote it. */
void ls_restore_on_disk(const struct ls_client*, uint64_t* epoch, uint64_t* ranks);

/* The freshness proof of a slot's content (proof.h); never 0. */
uint32_t ls_proof(uint64_t epoch, int64_t step, const void* content, uint64_t bytes);
/* CRC32C (Castagnoli) of `bytes` at `data`, continuing `crc` (0 to begin). */
uint32_t ls_crc32c(uint32_t crc, const void* data, uint64_t bytes);
/* Copies with non-temporal stores and returns the CRC32C of what was copied, continuing `crc`, in one pass. */
uint32_t ls_copy_crc32c(uint32_t crc, void* to, const void* from, uint64_t bytes);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
