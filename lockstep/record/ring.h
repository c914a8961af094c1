/* Single-producer, single-consumer ring of records in shared memory. Never blocks: when full, the producer drops and
 * counts.
 *
 * Invariants: head is stored (release) after the cells it covers are complete, so a producer killed at any instruction
 * leaves whole records only, and its successor goes on at head; a record and its `more` cells enter together or not at
 * all. Threads: one pushes, one pops, in any two processes. Neither trusts the other: positions out of range are
 * repaired and counted. Cost: a push is 64 bytes copied and one store per record (3 ns; release build, AMD EPYC Zen 5,
 * warm, one thread).
 *
 *   ls_ring_format(memory, ls_ring_bytes(1024));                  // once, by the owner of the memory
 *   struct ls_ring* ring = ls_ring_attach(memory, bytes);         // NULL: not a ring
 *   ls_ring_push(ring, &record);                                  // false: dropped
 *   n = ls_ring_pop(ring, cells, 256);                            // whole records only
 */
#ifndef LOCKSTEP_RECORD_RING_H_
#define LOCKSTEP_RECORD_RING_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lockstep/record/record.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LS_RING_MAGIC 0x31304e495244534cULL /* "LSDRIN01" in memory, little endian */

/* 192 bytes, then `capacity` cells; head and tail have cache lines of their own. Accessed with the __atomic builtins.
 */
struct ls_ring {
  uint64_t magic;
  uint32_t capacity; /* cells, a power of two */
  uint32_t reserved0[13];
  uint64_t head;    /* cells ever pushed; producer's */
  uint64_t dropped; /* records dropped because the ring was full; producer's */
  uint64_t reserved1[6];
  uint64_t tail;    /* cells ever popped; consumer's */
  uint64_t skipped; /* cells given up because positions or lengths made no sense; consumer's */
  uint64_t reserved2[6];
  struct ls_record cell[];
};
LS_RECORD_ASSERT(offsetof(struct ls_ring, cell) == 192, "docs/formats/record.md");

static inline size_t ls_ring_bytes(uint32_t capacity) {
  return sizeof(struct ls_ring) + (size_t)capacity * LS_CELL_BYTES;
}

/* Uses the largest power of two of cells that fits. False: fewer than 192 + 64 bytes. */
bool ls_ring_format(void* memory, size_t bytes);
struct ls_ring* ls_ring_attach(void* memory, size_t bytes);

/* `record` lies before its `more` cells. */
bool ls_ring_push(struct ls_ring*, const struct ls_record* record);
/* Copies up to `capacity` cells, never part of a record; returns the number of cells. A record longer than `capacity`
 * is skipped. Who does not trust the producer attaches anew before: its capacity is taken from there. */
size_t ls_ring_pop(struct ls_ring*, struct ls_record* cells, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
