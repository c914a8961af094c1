#define _GNU_SOURCE
#include "lockstep/stage/model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kLine = 64, kTries = 100 };

static size_t align(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }
static size_t head_at(void) {
  return align(sizeof(struct ls_segment_head) + LS_MODEL_USERS * sizeof(struct ls_member));
}
static size_t buffer_at(uint64_t floats, int which) {
  return head_at() + align(sizeof(struct ls_model_head)) + (size_t)which * align(floats * sizeof(float));
}
size_t ls_model_bytes(uint64_t floats) { return buffer_at(floats, 2); }

void ls_model_locate(struct ls_model* m) {
  char* memory = (char*)m->segment.head;
  m->head = (struct ls_model_head*)(memory + head_at());
  for (int i = 0; i < 2; ++i) m->buffer[i] = (float*)(memory + buffer_at(m->head->floats, i));
}

/* ---- handles ---- */

struct ls_model* ls_model_new(bool publishes) {
  struct ls_model* m = calloc(1, sizeof *m);
  if (m == NULL) {
    ls_stage_fail(LS_STAGE_REFUSED, "no memory");
    return NULL;
  }
  m->pid = getpid();
  m->publishes = publishes;
  return m;
}
int ls_model_give(struct ls_model* m, int result, struct ls_model** model) {
  if (result == LS_STAGE_OK) {
    ls_handle_open(&m->segment, LS_SEGMENT_MODEL);
    *model = m;
  } else {
    free(m);
  }
  return result;
}
int ls_model_end(struct ls_model* m) {
  ls_handle_close(&m->segment);
  ls_segment_depart(&m->segment, m->self, ls_stage_deadline(1.0));
  free(m->weights);
  free(m->next);
  free(m->scratch[0]);
  free(m->scratch[1]);
  return LS_STAGE_OK;
}

int ls_model_owner(const struct ls_model* m, bool publishes) {
  if (!ls_handle_is(m, LS_SEGMENT_MODEL) || m->publishes != publishes) {
    return ls_stage_fail(LS_STAGE_REFUSED, "this call needs a model from %s that is not closed",
                         publishes ? "ls_model_open()" : "ls_infer_open()");
  }
  if (m->pid == getpid()) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "model %s was opened by process %d, before a fork: open it here too",
                       m->segment.head->name, m->pid);
}

/* ---- opening ---- */

static int count_floats(const char* name, int layers, const struct ls_dense* layer, uint64_t* floats) {
  if (layers < 1 || layers > LS_MODEL_LAYERS) {
    return ls_stage_fail(LS_STAGE_REFUSED, "model %s: %d layers: expected 1 to %d", name, layers, LS_MODEL_LAYERS);
  }
  *floats = 0;
  for (int i = 0; i < layers; ++i) {
    const struct ls_dense* l = &layer[i];
    const uint32_t most = 1u << 20;
    if (l->inputs < 1 || l->inputs > most || l->outputs < 1 || l->outputs > most ||
        l->activation > LS_ACTIVATION_SIGMOID) {
      return ls_stage_fail(LS_STAGE_REFUSED, "model %s: layer %d is %u -> %u, activation %u: no such layer", name, i,
                           l->inputs, l->outputs, l->activation);
    }
    if (i > 0 && l->inputs != layer[i - 1].outputs) {
      return ls_stage_fail(LS_STAGE_REFUSED, "model %s: layer %d takes %u values, and layer %d gives %u", name, i,
                           l->inputs, i - 1, layer[i - 1].outputs);
    }
    *floats += (uint64_t)l->outputs * l->inputs + l->outputs;
  }
  return LS_STAGE_OK;
}

int ls_model_find(struct ls_model* m) {
  const size_t bytes = m->segment.bytes;
  if (m->segment.head->members == LS_MODEL_USERS && ls_model_bytes(0) <= bytes) {
    ls_model_locate(m);
    const struct ls_model_head* head = m->head;
    uint64_t floats = 0;
    if (head->floats <= bytes && ls_model_bytes(head->floats) == bytes &&
        count_floats(m->segment.head->name, (int)head->layers, head->layer, &floats) == LS_STAGE_OK &&
        floats == head->floats) {
      return LS_STAGE_OK;
    }
  }
  return ls_stage_fail(LS_STAGE_REFUSED, "%s is damaged: remove it", m->segment.path);
}

static int same_layers(const struct ls_model* m, const char* name, int layers, const struct ls_dense* layer) {
  const size_t bytes = (size_t)layers * sizeof *layer;
  if (m->head->layers == (uint32_t)layers && memcmp(m->head->layer, layer, bytes) == 0) return LS_STAGE_OK;
  return ls_stage_fail(LS_STAGE_REFUSED, "model %s is in use with other layers: publish under another name", name);
}

static int make_or_join(struct ls_model* m, const char* folder, const char* name, int layers,
                        const struct ls_dense* layer, uint64_t floats) {
  int result = ls_segment_open(folder, name, LS_SEGMENT_MODEL, &m->segment);
  if (result == LS_STAGE_OK) {
    result = ls_model_find(m);
    return result == LS_STAGE_OK ? same_layers(m, name, layers, layer) : result;
  }
  if (result != LS_STAGE_ABSENT) return result;
  result = ls_segment_create(folder, name, LS_SEGMENT_MODEL, LS_MODEL_USERS, ls_model_bytes(floats), &m->segment);
  if (result != LS_STAGE_OK) return result;
  ls_model_locate(m);
  m->head->floats = floats;
  m->head->layers = (uint32_t)layers;
  memcpy(m->head->layer, layer, (size_t)layers * sizeof *layer);
  ls_model_locate(m);
  return LS_STAGE_OK;
}

static int become_publisher(struct ls_model* m, const char* name) {
  struct ls_member* self = &m->segment.head->member[0];
  if (ls_member_alive(self)) {
    return ls_stage_fail(LS_STAGE_REFUSED, "model %s has a publisher already: process %d", name, self->pid);
  }
  const int result = ls_member_enter(self, 1);
  if (result == LS_STAGE_OK) m->self = self;
  return result;
}

int ls_model_open(const char* name, int layers, const struct ls_dense* layer, struct ls_model** model) {
  uint64_t floats = 0;
  int result = ls_stage_need(model, "model");
  if (result != LS_STAGE_OK) return result;
  *model = NULL;
  result = ls_stage_need(layer, "layer");
  if (result == LS_STAGE_OK) result = count_floats(name, layers, layer, &floats);
  if (result != LS_STAGE_OK) return result;
  struct ls_model* m = ls_model_new(true);
  if (m == NULL) return LS_STAGE_REFUSED;
  char folder[LS_FOLDER];
  const int room = ls_room_enter(folder, ls_stage_deadline(10.0));
  result = room < 0 ? LS_STAGE_REFUSED : make_or_join(m, folder, name, layers, layer, floats);
  if (result == LS_STAGE_OK) result = become_publisher(m, name);
  if (result != LS_STAGE_OK && m->segment.head != NULL) ls_segment_drop(&m->segment);
  if (room >= 0) ls_room_leave(room, folder);
  return ls_model_give(m, result, model);
}

/* ---- weights ---- */

/* Word by word: somebody may read a buffer as it is written, and finds out afterwards. */
static void copy_words(float* to, const float* from, uint64_t count) {
  uint32_t* target = (uint32_t*)(void*)to;
  const uint32_t* source = (const uint32_t*)(const void*)from;
  for (uint64_t i = 0; i < count; ++i) {
    __atomic_store_n(&target[i], __atomic_load_n(&source[i], __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
}

int ls_model_publish(struct ls_model* m, const float* weights, uint64_t count) {
  int result = ls_model_owner(m, true);
  if (result == LS_STAGE_OK) result = ls_stage_need(weights, "weights");
  if (result != LS_STAGE_OK) return result;
  if (count != m->head->floats) {
    return ls_stage_fail(LS_STAGE_REFUSED, "model %s: %" PRIu64 " weights: its layers have %" PRIu64,
                         m->segment.head->name, count, m->head->floats);
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (isfinite(weights[i])) continue;
    return ls_stage_fail(LS_STAGE_REFUSED, "model %s: weight %" PRIu64 " is not finite: publication %" PRIu64 " stays",
                         m->segment.head->name, i, m->head->generation);
  }
  const uint64_t generation = m->head->generation + 1;
  uint64_t* sequence = &m->head->sequence[generation & 1];
  const uint64_t odd = *sequence | 1; /* it is odd already if a publisher was killed here */
  __atomic_store_n(sequence, odd, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  copy_words(m->buffer[generation & 1], weights, count);
  __atomic_store_n(sequence, odd + 1, __ATOMIC_RELEASE);
  __atomic_store_n(&m->head->generation, generation, __ATOMIC_RELEASE);
  return LS_STAGE_OK;
}

uint64_t ls_model_read(const struct ls_model* m, float* to) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const uint64_t generation = __atomic_load_n(&m->head->generation, __ATOMIC_ACQUIRE);
    const uint64_t* sequence = &m->head->sequence[generation & 1];
    const uint64_t before = __atomic_load_n(sequence, __ATOMIC_ACQUIRE);
    if (generation == 0 || before & 1) continue;
    /* Two publications since: whole weights, but of a later one. */
    if (__atomic_load_n(&m->head->generation, __ATOMIC_RELAXED) != generation) continue;
    copy_words(to, m->buffer[generation & 1], m->head->floats);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(sequence, __ATOMIC_RELAXED) == before) return generation;
  }
  return 0;
}

uint64_t ls_model_generation(const struct ls_model* m) {
  return ls_handle_is(m, LS_SEGMENT_MODEL) ? __atomic_load_n(&m->head->generation, __ATOMIC_RELAXED) : 0;
}

int ls_model_close(struct ls_model* m) {
  const int result = ls_model_owner(m, true);
  return result == LS_STAGE_OK ? ls_model_end(m) : result;
}
