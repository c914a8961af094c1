/* The current model of a trainer, asked by the simulation: dense layers of 32-bit floats, run in the caller's process.
 * Weights come over in shared memory and are taken at ls_infer_refresh() alone, whole and of one publication: between
 * two of these every call has the same weights. A trainer that dies leaves the last that it published. Threads: one at
 * a time per handle. Cost of a call beside its multiplications: < 1 us (bench/stage_path.cc).
 *
 *   ls_infer_open("closure", 30.0, &model);          // waits for the first weights
 *   ls_infer_refresh(model);                         // between steps
 *   ls_infer(model, features, rows, correction);     // [rows][inputs] -> [rows][outputs]
 */
#ifndef LOCKSTEP_STAGE_INFER_H_
#define LOCKSTEP_STAGE_INFER_H_

#include <stdint.h>

#include "lockstep/stage/stage.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

enum ls_activation {
  LS_ACTIVATION_NONE = 0,
  LS_ACTIVATION_RELU = 1,
  LS_ACTIVATION_TANH = 2,
  LS_ACTIVATION_SIGMOID = 3
};
enum { LS_MODEL_LAYERS = 16, LS_MODEL_USERS = 256 };

/* y = activation(W x + b) */
struct ls_dense {
  uint32_t inputs, outputs, activation, reserved;
};
struct ls_model;

/* ---- of the simulation; results are those of stage.h ---- */

int ls_infer_open(const char* name, double timeout_s, struct ls_model** model);
/* Takes the newest weights if there are newer ones. Returns which publication they are, from 1; 0: no model. */
uint64_t ls_infer_refresh(struct ls_model*);
int ls_infer_sizes(const struct ls_model*, int* inputs, int* outputs);
/* input and output must not overlap. */
int ls_infer(struct ls_model*, const float* input, int rows, float* output);
int ls_infer_close(struct ls_model*);

/* ---- of the trainer ---- */

/* One living publisher per name. A model that is there already must have the same layers. */
int ls_model_open(const char* name, int layers, const struct ls_dense*, struct ls_model** model);
/* Of each layer the weights, [outputs][inputs], then the bias, one behind the other. Refused unless all are finite. */
int ls_model_publish(struct ls_model*, const float* weights, uint64_t count);
/* How many were published so far. */
uint64_t ls_model_generation(const struct ls_model*);
int ls_model_close(struct ls_model*);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
