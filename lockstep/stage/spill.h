/* A spill file: a page of head, then a record per visible step, all of one size, little endian (docs/formats/spill.md).
 * A record's own line is written after what it is about; the file ends at the first that is absent.
 */
#ifndef LOCKSTEP_STAGE_SPILL_H_
#define LOCKSTEP_STAGE_SPILL_H_

#include <stdint.h>

#define LS_SPILL_MAGIC 0x31304c495053534cULL        /* "LSSPIL01" */
#define LS_SPILL_RECORD_MAGIC 0x3130504554535353ULL /* "SSSTEP01" */
enum { LS_SPILL_VERSION = 2, LS_SPILL_PAGE = 4096, LS_SPILL_RECORD = 64 };

struct ls_spill_head {
  uint64_t magic;
  uint32_t version, reserved;
  int32_t dtype, ndim, ranks, reserved1;
  int64_t shape[8]; /* of a part */
  uint64_t part_bytes, part_stride, record_stride;
};

struct ls_spill_record { /* then the parts of all ranks */
  uint64_t magic;
  int64_t step;
  uint64_t index;         /* in this file */
  uint32_t crc, reserved; /* of step, index and the parts */
};

static inline uint64_t ls_spill_stride(uint64_t step_bytes) { return (step_bytes + LS_SPILL_RECORD + 63) / 64 * 64; }

#endif
