#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lockstep/client/bell.h"
#include "lockstep/client/copy.h"
#include "lockstep/client/fault.h"
#include "lockstep/client/session.h"

static const struct timespec kDevicePoll = {.tv_nsec = 50 * 1000};
enum { kLastPolls = 50000 }; /* some five seconds */

/* ---- laying out: the training thread ---- */

static void abandon(struct ls_client* c) {
  if (!c->save.open) return;
  c->save.open = false;
  if (!ls_is_current(c)) return;
  __atomic_store_n(&c->block->slot[c->save.slot].state, LS_SLOT_EMPTY, __ATOMIC_RELEASE);
}

static int give_up(struct ls_client* c, const char* why) {
  abandon(c);
  return ls_fail(LS_REFUSED, "%s", why);
}

static struct ls_piece* new_piece(struct ls_save* save) {
  if (save->pieces == save->capacity) {
    const size_t capacity = save->capacity == 0 ? 256 : 2 * save->capacity;
    struct ls_piece* grown = realloc(save->piece, capacity * sizeof *grown);
    if (grown == NULL) return NULL;
    save->piece = grown;
    save->capacity = capacity;
  }
  return &save->piece[save->pieces++];
}

/* The CUDA device, its buffers pinned; NULL after ls_fail(). */
static const struct ls_device_ops* cuda_of(struct ls_client* c) {
  const char* error = NULL;
  if (c->cuda == NULL) c->cuda = ls_device_cuda(&error);
  if (c->cuda == NULL) return ls_fail(0, "CUDA tensors cannot be copied: %s", error), NULL;
  ls_buffers_pin(c);
  return c->cuda;
}

/* Finds the place of the next tensor; zeros up to it. NULL: no room (or no device), the save is given up. */
static struct ls_piece* lay_out(struct ls_client* c, enum ls_device device, const void* from, uint64_t bytes) {
  struct ls_save* save = &c->save;
  if (from == NULL && bytes != 0) return give_up(c, "a tensor has bytes and no memory: it stands for another"), NULL;
  const uint64_t offset = ls_align(save->end);
  if (offset > ls_slot_capacity(c) || bytes > ls_slot_capacity(c) - offset) {
    return give_up(c, "the state does not fit its buffers: call ls_buffers() with its size first"), NULL;
  }
  if (device == LS_DEVICE_CUDA && cuda_of(c) == NULL) return abandon(c), NULL;
  struct ls_piece* piece = new_piece(save);
  if (piece == NULL) return give_up(c, "no memory for the list of tensors"), NULL;
  memset(save->base + save->end, 0, offset - save->end);
  *piece = (struct ls_piece){.offset = offset, .from = from, .bytes = bytes, .device = device};
  save->end = offset + bytes;
  save->cuda = save->cuda || device == LS_DEVICE_CUDA;
  return piece;
}

/* Copies the piece, unless it is there already, and continues the CRC over it and the zeros before it. False: its
 * memory is gone. */
static bool sum_piece(struct ls_save* save, const struct ls_piece* piece) {
  char* to = save->base + piece->offset;
  save->crc = ls_crc32c(save->crc, save->base + save->summed, piece->offset - save->summed);
  if (piece->copied) {
    save->crc = ls_crc32c(save->crc, to, piece->bytes);
  } else {
    const struct ls_device_ops* cpu = ls_device_cpu();
    if (!cpu->copy(cpu, to, piece->from, piece->bytes, &save->crc)) return false;
  }
  save->summed = piece->offset + piece->bytes;
  ++save->next;
  return true;
}

static int add_now(struct ls_client* c, enum ls_device device, const void* from, uint64_t bytes) {
  struct ls_save* save = &c->save;
  struct ls_piece* piece = lay_out(c, device, from, bytes);
  if (piece == NULL) return LS_REFUSED;
  if (device == LS_DEVICE_CUDA) {
    piece->copied = true;
    if (c->cuda->copy_in_stream(c->cuda, save->base + piece->offset, from, bytes, save->stream)) return LS_OK;
    return give_up(c, "the CUDA driver refused a copy");
  }
  if (save->next + 1 == save->pieces) {
    if (!sum_piece(save, piece)) return give_up(c, "the memory of a tensor is not mapped");
  } else { /* the CRC runs in order, and what lies before is still to be copied */
    ls_copy_nontemporal(save->base + piece->offset, from, bytes);
    piece->copied = true;
  }
  return LS_OK;
}

static int skip(struct ls_client* c, int64_t step) {
  ls_count(&c->block->skipped);
  ls_attempted(c->block, step);
  return LS_SKIPPED;
}

static int open_save(struct ls_client* c, int64_t step) {
  if (ls_slot_capacity(c) == 0) return ls_fail(LS_REFUSED, "ls_buffers() comes before ls_save_begin()");
  const int slot = ls_loss_is_bad(c) ? -1 : ls_slot_choose(c->board, c->index, c->epoch, step);
  if (slot < 0) return skip(c, step);
  ls_slot_open(&c->block->slot[slot], c->epoch, step, c->world_size);
  ls_attempted(c->block, step);
  struct ls_save* save = &c->save;
  *save = (struct ls_save){
      .piece = save->piece, .capacity = save->capacity, .stream = save->stream, .begun_ns = save->begun_ns};
  save->id = (struct ls_checkpoint){c->epoch, step};
  save->slot = slot;
  save->open = true;
  save->base = c->buffers.slot[slot];
  c->copier.torn = false;
  return LS_OK;
}

int ls_save_begin(struct ls_client* c, int64_t step, const void* meta, uint64_t meta_bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  if (ls_save_wait(c) == LS_TIMEOUT) return ls_is_current(c) ? skip(c, step) : LS_SKIPPED;
  abandon(c); /* a save that was begun and never submitted */
  c->save.begun_ns = ls_now_ns();
  if (!ls_is_current(c)) return ls_fail(LS_REFUSED, "epoch %llu is over", (unsigned long long)c->epoch);
  const int result = open_save(c, step);
  if (result != LS_OK) return result;
  c->save.meta_bytes = meta_bytes;
  return add_now(c, LS_DEVICE_CPU, meta, meta_bytes);
}

int ls_save_add_now(struct ls_client* c, enum ls_device device, const void* source, uint64_t bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  return c->save.open ? add_now(c, device, source, bytes) : LS_SKIPPED;
}

int ls_save_add(struct ls_client* c, enum ls_device device, const void* source, uint64_t bytes) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  if (!c->save.open) return LS_SKIPPED;
  return lay_out(c, device, source, bytes) != NULL ? LS_OK : LS_REFUSED;
}

int ls_save_add_many(struct ls_client* c, enum ls_device device, const void* const* sources, const uint64_t* bytes,
                     size_t count) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  if (!c->save.open) return LS_SKIPPED;
  for (size_t i = 0; i < count; ++i) {
    if (lay_out(c, device, sources[i], bytes[i]) == NULL) return LS_REFUSED;
  }
  return LS_OK;
}

int ls_save_stream(struct ls_client* c, void* stream) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  c->save.stream = stream;
  return LS_OK;
}

/* The piece that holds the byte at `offset`, or the last one before it. */
static const struct ls_piece* piece_at(const struct ls_save* save, uint64_t offset) {
  size_t low = 0, high = save->pieces;
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    if (save->piece[middle].offset <= offset)
      low = middle;
    else
      high = middle;
  }
  return &save->piece[low];
}

/* `into`: a multiple of LS_PROOF_BYTES. What is copied already can't differ; nor is a device waited for. */
static void witness(struct ls_save* save, const struct ls_piece* piece, uint64_t into) {
  const bool waits = piece >= save->piece + save->next && !piece->copied && piece->device == LS_DEVICE_CPU;
  if (!waits || into >= piece->bytes) return;
  ls_witness_add(&save->witness, piece->offset + into, (const char*)piece->from + into, piece->bytes - into);
}

static void witness_all(struct ls_save* save) {
  if (save->end == 0) return; /* no byte that could differ */
  for (uint32_t k = 0; k < LS_PROOF_PLACES; ++k) {
    const uint64_t place = ls_proof_place(save->id, k, save->end);
    const struct ls_piece* piece = piece_at(save, place);
    witness(save, piece, place - piece->offset);
    piece = &save->piece[ls_proof_choice(save->id, LS_PROOF_PLACES + k, save->pieces)];
    if (piece->bytes > 0) witness(save, piece, ls_proof_place(save->id, k, piece->bytes));
  }
}

static bool hand_over(struct ls_client* c) {
  witness_all(&c->save);
  ls_fault_catch(); /* from now on the script may free what is being copied */
  return ls_copier_take(c);
}

static int submit(struct ls_client* c, bool here) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  if (!c->save.open) return LS_SKIPPED;
  struct ls_save* save = &c->save;
  if (save->cuda && !c->cuda->order(c->cuda, save->stream)) return give_up(c, "the CUDA driver refused an event");
  save->open = false;
  int result = LS_OK;
  /* Wanted here, nothing to hand over, or nobody to take it. */
  if (here || save->next == save->pieces || !hand_over(c)) result = (int)ls_save_finish(c);
  ls_add_blocked(c, save->begun_ns);
  return result;
}

int ls_save_submit(struct ls_client* c) { return submit(c, false); }

int ls_save_here(struct ls_client* c) { return submit(c, true); }

/* ---- copying: the copy thread, or the training thread ---- */

static bool begin_cuda_copies(struct ls_client* c) {
  struct ls_save* save = &c->save;
  for (size_t i = save->next; i < save->pieces; ++i) {
    struct ls_piece* piece = &save->piece[i];
    if (piece->device != LS_DEVICE_CUDA || piece->copied) continue;
    if (!c->cuda->copy(c->cuda, save->base + piece->offset, piece->from, piece->bytes, NULL)) return false;
    piece->copied = true;
  }
  return c->cuda->record(c->cuda);
}

/* A device that hangs never has it done: who leaves waits for that a while only. */
static bool wait_for_cuda(const struct ls_client* c) {
  enum ls_copy_state state;
  int polls = 0;
  while ((state = c->cuda->query(c->cuda)) == LS_COPY_PENDING) {
    if (__atomic_load_n(&c->copier.ends, __ATOMIC_RELAXED) && ++polls > kLastPolls) return false;
    nanosleep(&kDevicePoll, NULL);
  }
  return state == LS_COPY_DONE;
}

/* LS_REFUSED: the device did not copy. LS_STALE: memory is gone. */
static enum ls_result copy_all(struct ls_client* c) {
  struct ls_save* save = &c->save;
  if (save->cuda && !begin_cuda_copies(c)) return LS_REFUSED;
  bool arrived = !save->cuda;
  while (save->next < save->pieces) {
    const struct ls_piece* piece = &save->piece[save->next];
    if (piece->device == LS_DEVICE_CUDA && !arrived && !(arrived = wait_for_cuda(c))) return LS_REFUSED;
    if (!sum_piece(save, piece)) return LS_STALE;
  }
  return LS_OK;
}

/* DONE, or EMPTY if the content cannot be trusted. A stale writer leaves the slot to the epoch that owns it now. */
static enum ls_result close_slot(struct ls_client* c, enum ls_result copied, bool torn) {
  struct ls_save* save = &c->save;
  struct ls_slot* slot = &c->block->slot[save->slot];
  if (!ls_is_current(c)) return LS_REFUSED;
  const bool whole = copied == LS_OK && !torn;
  const bool stale = copied == LS_STALE || (whole && !ls_witness_agrees(&save->witness, save->base));
  if (whole && !stale) {
    const uint32_t proof = ls_proof(save->id.epoch, save->id.step, save->base, save->end);
    ls_slot_done(slot, save->end, save->meta_bytes, save->crc, proof);
    ls_ring_if_whole(c->board, (struct ls_checkpoint){slot->epoch, slot->step});
    ls_count(&c->block->copies);
    return LS_OK;
  }
  __atomic_store_n(&slot->state, LS_SLOT_EMPTY, __ATOMIC_RELEASE);
  if (torn || stale) ls_count(&c->block->torn);
  if (stale) return LS_STALE;
  return torn ? LS_OK : LS_REFUSED;
}

enum ls_result ls_save_finish(struct ls_client* c) {
  const enum ls_result copied = copy_all(c);
  pthread_mutex_lock(&c->copier.mutex); /* ls_save_spoil() and DONE exclude each other */
  const enum ls_result result = close_slot(c, copied, c->copier.torn);
  pthread_mutex_unlock(&c->copier.mutex);
  return result;
}
