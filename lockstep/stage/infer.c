#define _GNU_SOURCE
#include "lockstep/stage/infer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/stage/model.h"

/* ---- opening ---- */

static int find_in(struct ls_model* m, const char* folder, const char* name) {
  int result = ls_segment_open(folder, name, LS_SEGMENT_MODEL, &m->segment);
  if (result != LS_STAGE_OK) return result;
  result = ls_model_find(m);
  if (result != LS_STAGE_OK) {
    ls_segment_drop(&m->segment);
    return result;
  }
  m->self = ls_member_free(m->segment.head, 1, LS_MODEL_USERS - 1);
  if (m->self == NULL) {
    result = ls_stage_fail(LS_STAGE_REFUSED, "model %s is asked by %d others already", name, LS_MODEL_USERS - 1);
  } else if (ls_model_generation(m) == 0) {
    result = LS_STAGE_ABSENT;
  } else {
    result = ls_member_enter(m->self, 1);
    if (result == LS_STAGE_OK) return result;
  }
  ls_segment_drop(&m->segment);
  return result;
}

static int find(struct ls_model* m, const char* name, int64_t deadline, char folder[LS_FOLDER]) {
  const int room = ls_room_enter(folder, ls_stage_left(deadline));
  if (room < 0) return LS_STAGE_REFUSED;
  const int result = find_in(m, folder, name);
  ls_room_leave(room, folder);
  return result;
}

static int take_memory(struct ls_model* m) {
  const struct ls_model_head* head = m->head;
  for (uint32_t i = 0; i < head->layers; ++i) {
    if (head->layer[i].outputs > m->widest) m->widest = head->layer[i].outputs;
  }
  float** const wanted[] = {&m->weights, &m->next, &m->scratch[0], &m->scratch[1]};
  for (int i = 0; i < 4; ++i) {
    *wanted[i] = malloc((i < 2 ? head->floats : m->widest) * sizeof(float));
    if (*wanted[i] == NULL) return ls_stage_fail(LS_STAGE_REFUSED, "model %s: no memory", m->segment.head->name);
  }
  if (ls_infer_refresh(m) != 0) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_TIMEOUT, "model %s: no weights could be read whole: it is published too often",
                       m->segment.head->name);
}

int ls_infer_open(const char* name, double timeout_s, struct ls_model** model) {
  const int64_t deadline = ls_stage_deadline(timeout_s);
  const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
  char folder[LS_FOLDER];
  int result = ls_stage_need(model, "model");
  if (result != LS_STAGE_OK) return result;
  *model = NULL;
  struct ls_model* m = ls_model_new(false);
  if (m == NULL) return LS_STAGE_REFUSED;
  while ((result = find(m, name, deadline, folder)) == LS_STAGE_ABSENT && ls_stage_now_ns() < deadline)
    nanosleep(&pause, NULL);
  if (result == LS_STAGE_OK) {
    *model = m;
    result = take_memory(m);
    if (result == LS_STAGE_OK) return result;
    ls_infer_close(m);
    *model = NULL;
    return result;
  }
  ls_model_free(m);
  if (result != LS_STAGE_ABSENT) return result;
  return ls_stage_fail(result, "no model %s in %s: nobody has published one in %g s", name, folder, timeout_s);
}

int ls_infer_close(struct ls_model* m) {
  const int result = ls_model_owner(m, false);
  if (result != LS_STAGE_OK) return result;
  ls_model_shut(m);
  ls_segment_depart(&m->segment, m->self);
  ls_model_free(m);
  return LS_STAGE_OK;
}

/* ---- weights ---- */

/* `from` [outputs][inputs] to [inputs][outputs], so that the inner loop of a layer goes over outputs. */
static void transpose(const struct ls_dense* layer, const float* from, float* to) {
  for (uint32_t o = 0; o < layer->outputs; ++o) {
    for (uint32_t i = 0; i < layer->inputs; ++i)
      to[(size_t)i * layer->outputs + o] = from[(size_t)o * layer->inputs + i];
  }
}

uint64_t ls_infer_refresh(struct ls_model* m) {
  if (ls_model_owner(m, false) != LS_STAGE_OK) return 0;
  if (ls_model_generation(m) == m->generation) return m->generation;
  const uint64_t generation = ls_model_read(m, m->next);
  if (generation == 0) return m->generation;
  size_t at = 0;
  for (uint32_t i = 0; i < m->head->layers; ++i) {
    const struct ls_dense* layer = &m->head->layer[i];
    const size_t weights = (size_t)layer->inputs * layer->outputs;
    transpose(layer, m->next + at, m->weights + at);
    memcpy(m->weights + at + weights, m->next + at + weights, layer->outputs * sizeof(float));
    at += weights + layer->outputs;
  }
  m->generation = generation;
  return generation;
}

int ls_infer_sizes(const struct ls_model* m, int* inputs, int* outputs) {
  const int result = ls_model_owner(m, false);
  if (result != LS_STAGE_OK) return result;
  if (inputs != NULL) *inputs = (int)m->head->layer[0].inputs;
  if (outputs != NULL) *outputs = (int)m->head->layer[m->head->layers - 1].outputs;
  return LS_STAGE_OK;
}

/* ---- the forward pass ---- */

static void activate(uint32_t activation, float* values, uint32_t count) {
  for (uint32_t i = 0; i < count && activation == LS_ACTIVATION_RELU; ++i)
    values[i] = values[i] < 0 ? 0 : values[i]; /* what is no number stays none, as in torch */
  for (uint32_t i = 0; i < count && activation == LS_ACTIVATION_TANH; ++i) values[i] = tanhf(values[i]);
  for (uint32_t i = 0; i < count && activation == LS_ACTIVATION_SIGMOID; ++i) values[i] = 1 / (1 + expf(-values[i]));
}

static void forward(const struct ls_dense* layer, const float* restrict weights, const float* restrict x,
                    float* restrict y) {
  const uint32_t outputs = layer->outputs;
  memcpy(y, weights + (size_t)layer->inputs * outputs, outputs * sizeof(float));
  uint32_t i = 0;
  for (; i + 4 <= layer->inputs; i += 4) { /* four at a time: y is loaded and stored once for them */
    const float* w = weights + (size_t)i * outputs;
    const float *w1 = w + outputs, *w2 = w1 + outputs, *w3 = w2 + outputs;
    for (uint32_t o = 0; o < outputs; ++o) y[o] += x[i] * w[o] + x[i + 1] * w1[o] + x[i + 2] * w2[o] + x[i + 3] * w3[o];
  }
  for (; i < layer->inputs; ++i) {
    const float* w = weights + (size_t)i * outputs;
    for (uint32_t o = 0; o < outputs; ++o) y[o] += x[i] * w[o];
  }
  activate(layer->activation, y, outputs);
}

static void run(struct ls_model* m, const float* input, float* output) {
  const struct ls_model_head* head = m->head;
  const float *x = input, *weights = m->weights;
  for (uint32_t i = 0; i < head->layers; ++i) {
    const struct ls_dense* layer = &head->layer[i];
    float* y = i + 1 == head->layers ? output : m->scratch[i & 1];
    forward(layer, weights, x, y);
    weights += ((size_t)layer->inputs + 1) * layer->outputs;
    x = y;
  }
}

int ls_infer(struct ls_model* m, const float* input, int rows, float* output) {
  int result = ls_model_owner(m, false);
  if (result == LS_STAGE_OK && rows != 0) result = ls_stage_need(input, "input");
  if (result == LS_STAGE_OK && rows != 0) result = ls_stage_need(output, "output");
  if (result != LS_STAGE_OK) return result;
  if (rows < 0) {
    return ls_stage_fail(LS_STAGE_REFUSED, "model %s: %d rows: expected 0 or more", m->segment.head->name, rows);
  }
  const uint32_t inputs = m->head->layer[0].inputs, outputs = m->head->layer[m->head->layers - 1].outputs;
  for (int row = 0; row < rows; ++row) run(m, input + (size_t)row * inputs, output + (size_t)row * outputs);
  return LS_STAGE_OK;
}
