/* The ring of batches that `lockstep feed serve` prepares for one rank of a job: one sealed memfd, which the rank gets
 * by SCM_RIGHTS and maps. Byte-exact layout: docs/formats/feed.md.
 *
 * Batches are numbered by tickets from 0 on, per connection; each lies in any slot that was free. Invariants: the
 * service writes a slot only while released == filled; the job reads it only while filled == ticket + 1 and released !=
 * filled. So a batch is the job's own, and stays as it is, until the job releases it, in any order. Whoever dies holds
 * nothing: the other has a mapping of its own. Threads: one that fills and one that takes; any may release. C17 and
 * C++20; libc only.
 */
#ifndef LOCKSTEP_CLIENT_FEED_RING_H_
#define LOCKSTEP_CLIENT_FEED_RING_H_

#include <stddef.h>
#include <stdint.h>

#include "lockstep/client/board.h" /* ls_atomic_u64, LS_STATIC_ASSERT */

#define LS_FEED_MAGIC 0x313044454546534cULL /* "LSFEED01" in memory, little endian */
#define LS_FEED_VERSION 1u
#define LS_FEED_MAX_SLOTS 32u
#define LS_FEED_ALIGN 4096u
#define LS_FEED_STATE 256

/* 64 bytes: a cache line. Both are 0 before the slot is first used. */
struct ls_feed_slot {
  ls_atomic_u64 filled;   /* ticket + 1 of the batch in the slot; the service stores it last, with release order */
  ls_atomic_u64 released; /* ticket + 1 of the newest batch in the slot that the job is done with */
  uint64_t reserved[6];
};

/* 4096 bytes, then the slots. */
struct ls_feed_ring {
  uint64_t magic;
  uint32_t version, slots;
  uint64_t slot_stride;    /* bytes; slot i begins at LS_FEED_ALIGN + i * slot_stride */
  uint64_t item_bytes;     /* of one item of the payload */
  uint32_t capacity;       /* items that a batch has at most */
  uint32_t payload_offset; /* in the slot; before it: struct ls_feed_batch, ids, labels */
  uint64_t reserved[3];
  ls_atomic_u64 bell; /* its first 4 bytes are a futex word that the service counts up whenever it has filled a slot */
  uint64_t reserved_bell[7];
  ls_atomic_u64 sleeping; /* 1: the job waits for the bell */
  uint64_t reserved_sleeping[7];
  ls_atomic_u64 starving; /* 1: the service waits for a slot: whoever releases one clears this and sends one byte */
  uint64_t reserved_starving[7];
  struct ls_feed_slot slot[LS_FEED_MAX_SLOTS];
  uint64_t reserved_end[224];
};

/* 512 bytes, at the beginning of a slot; valid while it is filled. Then capacity ids (u64): those of the items, then
 * those of the skipped ones; capacity labels (i64); and from payload_offset on the items, without gaps; or, of a batch
 * that has lost all of its items, a text that says why. */
struct ls_feed_batch {
  uint64_t ticket, epoch;
  uint64_t position; /* in the epoch's order of the job: of the first item of this batch */
  uint64_t cursor;   /* the same, of the first item that no rank has when all have taken this step */
  uint64_t step;     /* in the epoch, from where this connection began */
  uint32_t items, skipped;
  uint64_t last;               /* 1: of the epoch */
  int64_t began_ns, filled_ns; /* CLOCK_BOOTTIME: the service began to fill it, and had done so */
  uint64_t read_ns, decode_ns; /* of its threads' time, what it took to read the items, and to decode and scale them */
  uint64_t busy_ns;   /* of its threads' time between began_ns and filled_ns, what went into work for anybody */
  uint64_t threads;   /* that it has */
  uint64_t relayed;   /* 1: made on another machine; read_ns has its way too (relay/head.h) */
  uint64_t why_bytes; /* all items were skipped: of the text that lies in their place, at most LS_FEED_ALIGN; else 0 */
  uint64_t reserved[17];
  char state[LS_FEED_STATE]; /* NUL-terminated: with what the job goes on after this step */
};

LS_STATIC_ASSERT(sizeof(struct ls_feed_slot) == 64, "docs/formats/feed.md");
LS_STATIC_ASSERT(sizeof(struct ls_feed_ring) == LS_FEED_ALIGN, "docs/formats/feed.md");
LS_STATIC_ASSERT(offsetof(struct ls_feed_ring, bell) == 64, "docs/formats/feed.md");
LS_STATIC_ASSERT(offsetof(struct ls_feed_ring, slot) == 256, "docs/formats/feed.md");
LS_STATIC_ASSERT(sizeof(struct ls_feed_batch) == 512, "docs/formats/feed.md");

enum ls_feed_result { LS_FEED_NOT_YET = -1, LS_FEED_GONE = -2, LS_FEED_TOLD = -3 };

#ifdef __cplusplus
extern "C" {
#endif

/* Job: the slot of the batch, once it is there; else, `timeout_ms` are over (NOT_YET), the service has something to say
 * on the socket (TOLD) or is gone (GONE; what it had filled has been taken). No system call if the batch is there. */
__attribute__((visibility("default"))) int ls_feed_await(struct ls_feed_ring* ring, uint64_t ticket, int socket,
                                                         int timeout_ms);
/* Job: the service may fill the slot anew. At most one byte goes to the socket; -1: there is none. */
__attribute__((visibility("default"))) void ls_feed_release(struct ls_feed_ring* ring, uint32_t slot, int socket);
/* Service: the batch is complete. */
__attribute__((visibility("default"))) void ls_feed_publish(struct ls_feed_ring* ring, uint32_t slot, uint64_t ticket);

#ifdef __cplusplus
}
#endif

#endif
