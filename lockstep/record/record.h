/* The 64-byte record: what workers and plugins tell Lockstep, live (ring.h) and on disk (file.h). Byte-exact layout:
 * docs/formats/record.md.
 *
 * Invariants: every record says how many 64-byte cells follow it (`more`), so a reader skips kinds that it does not
 * know, and counts them; names are interned to 32-bit ids by definition records, whose text lies in the following
 * cells; definitions are sent again in a new epoch. One 64-bit time per record, all else are 32-bit deltas in units of
 * 2^delta_shift ns. C17 and C++20; libc only.
 */
#ifndef LOCKSTEP_RECORD_RECORD_H_
#define LOCKSTEP_RECORD_RECORD_H_

#include <stdint.h>

#ifdef __cplusplus
#define LS_RECORD_ASSERT static_assert
extern "C" {
#else
#define LS_RECORD_ASSERT _Static_assert
#endif

#define LS_CELL_BYTES 64u

/* Op, transfer and window are reserved numbers: no writer sends them yet, and readers skip and count them. */
enum ls_record_kind {
  LS_RECORD_STEP = 1,
  LS_RECORD_OP = 2,
  LS_RECORD_TRANSFER = 3,
  LS_RECORD_WINDOW = 4,
  LS_RECORD_DEFINITION = 5,
};

struct ls_step_body {
  int64_t step;      /* as the script numbers it */
  double loss;       /* NaN = not given */
  uint32_t duration; /* since the step before ended; delta */
  uint32_t blocked;  /* of it, time spent waiting for state copies; delta */
  uint32_t rank;
  uint8_t reserved[20];
};

struct ls_definition_body {
  uint32_t id;    /* from now on, in this epoch of this rank, */
  uint32_t table; /* in this name space, */
  uint32_t bytes; /* stands for this much UTF-8 text in the `more` cells that follow */
  uint32_t rank;
  uint8_t reserved[32];
};

struct ls_record {
  uint8_t kind; /* enum ls_record_kind */
  uint8_t delta_shift;
  uint16_t more;   /* further cells that belong to this record */
  uint32_t epoch;  /* low 32 bits: what a dead epoch left in a ring can be told from the living */
  int64_t time_ns; /* end of what is described, CLOCK_BOOTTIME */
  union {
    struct ls_step_body step;
    struct ls_definition_body definition;
    uint8_t bytes[48];
  } body;
};
LS_RECORD_ASSERT(sizeof(struct ls_record) == LS_CELL_BYTES, "docs/formats/record.md");

/* The smallest shift at which `longest_ns` fits 32 bits: resolution 1 ns up to 4.3 s, 2 ns up to 8.6 s, and so on. */
static inline uint8_t ls_delta_shift(int64_t longest_ns) {
  uint8_t shift = 0;
  while (longest_ns >> shift > UINT32_MAX) ++shift;
  return shift;
}
static inline uint32_t ls_delta(int64_t ns, uint8_t shift) { return ns > 0 ? (uint32_t)(ns >> shift) : 0; }
static inline int64_t ls_delta_ns(uint32_t delta, uint8_t shift) { return (int64_t)delta << shift; }

#ifdef __cplusplus
}
#endif
#endif
