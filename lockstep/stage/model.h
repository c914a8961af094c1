/* How a model lies in its segment: members (the publisher, then who asks), a head, and two buffers of weights, of which
 * `generation` says which is current. The other one is written; `sequence` is odd meanwhile, so that whoever still
 * reads there notices, and reads again. */
#ifndef LOCKSTEP_STAGE_MODEL_H_
#define LOCKSTEP_STAGE_MODEL_H_

#include <stdbool.h>

#include "lockstep/stage/infer.h"
#include "lockstep/stage/segment.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ls_model_head {
  uint64_t generation; /* publications so far */
  uint64_t sequence[2];
  uint64_t floats; /* per buffer */
  uint32_t layers, reserved;
  struct ls_dense layer[LS_MODEL_LAYERS];
};

struct ls_model {
  struct ls_segment segment;
  struct ls_model_head* head;
  float* buffer[2];
  struct ls_member* self;
  int pid;
  bool publishes;
  /* Of who asks: weights transposed to [inputs][outputs], the ones in use and room for the next. */
  uint64_t generation;
  float *weights, *next, *scratch[2];
  uint32_t widest;
};

size_t ls_model_bytes(uint64_t floats);
void ls_model_locate(struct ls_model*);
/* The same of one that others made. */
int ls_model_find(struct ls_model*);
/* A handle that is open from now on; NULL: ls_stage_last_error(). */
struct ls_model* ls_model_new(bool publishes);
/* Which is closed from the first on, and gone with the second. */
void ls_model_shut(struct ls_model*);
void ls_model_free(struct ls_model*);
/* LS_STAGE_OK if this process opened it, and has not closed it. */
int ls_model_owner(const struct ls_model*, bool publishes);
/* Copies the newest whole weights into `to`; the generation, or 0: the publisher was faster many times over. */
uint64_t ls_model_read(const struct ls_model*, float* to);

#ifdef __cplusplus
}
#endif
#endif
