/* liblockstep-stage.so: steps of a running simulation, in shared memory, for trainers on the same machine. C ABI, libc
 * only; for Fortran by iso_c_binding.
 * Invariants: a step is visible once every rank has committed its part, whole, never before; what a reader holds is not
 * written over; nobody waits longer than the limit that it gives, but for locks that are held for microseconds, if who
 * has one was stopped, so much in all: open 100 ms, reserve 50 ms, commit and abandon 10 s, close and readers 1 s. No
 * call aborts, or ends the process by a signal (a full disk, a limit on files); none touches signals, or allocates
 * between open and close (ls_stage_list(): as qsort() does). A handle that is NULL, closed or of another process is
 * refused: a child of fork() has to open the stream for itself. A closed one keeps some 450 bytes. Threads: one at a
 * time per handle; but a step may be released while another thread waits for one. Cost: reserve + commit + next +
 * release 2 us, k = 8 (bench/stage_path.cc); grows with k (docs/models/stage.md).
 *
 *   struct ls_stage_options how = {.policy = LS_STAGE_LATEST, .k = 8};
 *   ls_stage_open("heat", rank, ranks, LS_STAGE_F32, 2, shape, &how, 10.0, &stream);    // of each rank; of its part
 *   ls_stage_reserve(stream, step, 1.0, &memory);   ... write into memory ...   ls_stage_commit(stream);
 *   ls_stage_close(stream, 0.0);
 */
#ifndef LOCKSTEP_STAGE_STAGE_H_
#define LOCKSTEP_STAGE_STAGE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum ls_stage_result {
  LS_STAGE_OK = 0,
  LS_STAGE_REFUSED = 1, /* bad input, or no room: ls_stage_last_error() says which */
  LS_STAGE_TIMEOUT = 2,
  LS_STAGE_ORDER = 3,  /* a step that does not follow, or commit without reserve */
  LS_STAGE_END = 4,    /* every rank has closed the stream, and all was read */
  LS_STAGE_DIED = 5,   /* a writer is gone without closing; one that opens its rank anew goes on */
  LS_STAGE_ABSENT = 6, /* no such stream, or no such step in it (any more) */
  LS_STAGE_SPILL = 7,  /* the step is visible, but the spill file could not take it and ends there */
  LS_STAGE_AGAIN = 8,  /* only after ls_stage_slices(): the slice is over, and the time is not */
};

enum ls_stage_dtype {
  LS_STAGE_F32 = 1,
  LS_STAGE_F64 = 2,
  LS_STAGE_I32 = 3,
  LS_STAGE_I64 = 4,
  LS_STAGE_U8 = 5,
  LS_STAGE_F16 = 6,
};

enum ls_stage_policy {
  LS_STAGE_LOSSLESS = 1,  /* k steps of room; a full one keeps the writer waiting for readers, within its limit */
  LS_STAGE_LATEST = 2,    /* the latest k */
  LS_STAGE_RESERVOIR = 3, /* k of all steps so far, each with the same chance (algorithm R, by seed) */
  LS_STAGE_REPLAY = 4,    /* the latest k, and all of them in the spill file, from which readers draw */
};

struct ls_stage_options {
  int32_t policy;
  uint32_t k;
  uint32_t spare;    /* room beyond k for steps being written or still held by readers; 0: 3 */
  uint32_t readers;  /* lossless: no step is given up before so many have come; 0: 1 */
  uint64_t seed;     /* reservoir */
  const char* spill; /* a file for every visible step (docs/formats/spill.md); NULL: none. Must not exist. */
};

struct ls_stage;

/* The text of the last failure in this thread; "" if none. */
const char* ls_stage_last_error(void);
/* For a language that must look up while it waits: from now on reserve, linger, attach and next of this thread return
 * AGAIN after slice_s seconds in which they could do nothing, and are to be called again with the same arguments, the
 * limit among them, which counts from now on. 0: that wait is over, and one that it came into the midst of, as a
 * signal's handler may, goes on in its own slices; else there are none any more, as at first. */
void ls_stage_slices(double slice_s);

/* ---- of the simulation, in each of its ranks ---- */

/* All ranks say the same, but for `rank`; shape is that of one rank's part. Whoever is first makes the stream. */
int ls_stage_open(const char* name, int rank, int ranks, int dtype, int ndim, const int64_t* shape,
                  const struct ls_stage_options*, double timeout_s, struct ls_stage** stream);
/* Memory for this rank's part of `step`, which must be above the last. It holds whatever was there before. */
int ls_stage_reserve(struct ls_stage*, int64_t step, double timeout_s, void** memory);
/* TIMEOUT: the stream is locked by who was stopped; the step may be committed again, or abandoned. */
int ls_stage_commit(struct ls_stage*);
/* Instead of commit: the step will not become visible. */
int ls_stage_abandon(struct ls_stage*);
/* The newest visible step, -1 if none, or no stream: where a simulation that was restarted may go on. */
int64_t ls_stage_last_step(const struct ls_stage*);
/* Lossless: waits so long for as many readers as are expected to have come. TIMEOUT: fewer came. */
int ls_stage_linger(struct ls_stage*, double linger_s);
/* The same, and closes in any case; what readers have not taken stays for them. TIMEOUT: what has no reader is gone,
 * and counted. */
int ls_stage_close(struct ls_stage*, double linger_s);

/* ---- of trainers ---- */

struct ls_stage_step {
  int64_t step, index; /* index: how many became visible before */
  const void* memory;  /* the parts of all ranks, one behind the other, each padded to part_stride */
  uint32_t slot, reserved;
};

struct ls_stage_facts {
  int32_t dtype, ndim;
  int64_t shape[8];
  int32_t ranks, policy;
  uint32_t k, reserved;
  uint64_t part_bytes, part_stride;
  /* Counters of the stream so far. */
  uint64_t visible, incomplete, unread, writer_waits, readers_reaped, spilled, spill_failures;
  uint64_t skipped; /* of this reader: retired before it came to them */
  char spill[256];
};

/* Waits so long for the stream to be there. Of `shards` readers, each gets the steps with index % shards == shard. */
int ls_stage_attach(const char* name, int shard, int shards, double timeout_s, struct ls_stage** stream);
int ls_stage_look(struct ls_stage*, struct ls_stage_facts*);
/* The next step that this reader has not had; held until released. */
int ls_stage_next(struct ls_stage*, double timeout_s, struct ls_stage_step*);
/* This step, whether or not it was had before. */
int ls_stage_get(struct ls_stage*, int64_t step, struct ls_stage_step*);
/* The steps that are visible now, in order; returns how many there are, of which up to `room` are written; -1: refused,
 * or TIMEOUT. */
int ls_stage_list(struct ls_stage*, int64_t* steps, int room);
/* Each step as often as it was got. */
int ls_stage_release(struct ls_stage*, const struct ls_stage_step*);
/* CRC32C, for who reads a spill file: of a record's step and index, and then its parts. */
uint32_t ls_stage_crc32c(const void* data, uint64_t bytes);
/* Releases all. Memory that was got must not be read any more. */
int ls_stage_detach(struct ls_stage*);
/* For a process that is about to end, in place of detach, also while another thread waits for a step: what was got may
 * be read to the very end, and the others take it back then. */
int ls_stage_leave(struct ls_stage*);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
