#include "lockstep/client/feed_lease.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* As DLPack defines it; byte for byte the same since its first version. */
struct dl_tensor {
  void* data;
  int32_t device_type, device;
  int32_t dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct dl_managed {
  struct dl_tensor tensor;
  void* context;
  void (*deleter)(struct dl_managed*);
};

#define DL_CPU 1

struct shown {
  struct dl_managed managed; /* first: the address of the whole */
  struct ls_feed_lender* lender;
  uint64_t ticket;
  uint32_t slot;
  int64_t shape[LS_FEED_MAX_DIMENSIONS], strides[LS_FEED_MAX_DIMENSIONS];
};

struct lease {
  uint64_t ticket;
  uint32_t shares; /* 0: the slot is not lent */
};

struct ls_feed_lender {
  struct ls_feed_ring* ring;
  uint64_t bytes, stride;
  uint32_t slots, capacity;
  pid_t pid;
  pthread_mutex_t lock; /* guards what follows; never taken in a child that was forked, which may have got it locked */
  int socket;
  uint32_t lent; /* slots */
  uint64_t uses; /* of the mapping: all shares, and one until it is closed */
  struct lease lease[LS_FEED_MAX_SLOTS];
};

static int is_ring(const struct ls_feed_ring* ring, uint64_t bytes) {
  return ring->magic == LS_FEED_MAGIC && ring->version == LS_FEED_VERSION && ring->slots >= 1 &&
         ring->slots <= LS_FEED_MAX_SLOTS && ring->slot_stride <= bytes &&
         LS_FEED_ALIGN + ring->slots * ring->slot_stride <= bytes && ring->payload_offset <= ring->slot_stride &&
         sizeof(struct ls_feed_batch) + 16ULL * ring->capacity <= ring->payload_offset;
}

struct ls_feed_lender* ls_feed_open(int fd, int socket) {
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < (off_t)LS_FEED_ALIGN) return NULL;
  const uint64_t bytes = (uint64_t)info.st_size;
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return NULL;
  struct ls_feed_ring* ring = memory;
  struct ls_feed_lender* lender = is_ring(ring, bytes) ? calloc(1, sizeof *lender) : NULL;
  if (lender == NULL) {
    munmap(memory, bytes);
    return NULL;
  }
  lender->ring = ring;
  lender->bytes = bytes;
  lender->stride = ring->slot_stride;
  lender->slots = ring->slots;
  lender->capacity = ring->capacity;
  lender->pid = getpid();
  lender->socket = socket;
  lender->uses = 1;
  pthread_mutex_init(&lender->lock, NULL);
  return lender;
}

char* ls_feed_memory(const struct ls_feed_lender* lender) { return (char*)lender->ring; }

static char* slot_at(const struct ls_feed_lender* lender, uint32_t slot) {
  return ls_feed_memory(lender) + LS_FEED_ALIGN + slot * lender->stride;
}

/* Unlocks; nothing of the lender may be used after the last use. */
static void end_use(struct ls_feed_lender* lender) {
  const uint64_t left = --lender->uses;
  pthread_mutex_unlock(&lender->lock);
  if (left > 0) return;
  munmap(lender->ring, lender->bytes);
  pthread_mutex_destroy(&lender->lock);
  free(lender);
}

void ls_feed_hang_up(struct ls_feed_lender* lender) {
  if (getpid() != lender->pid) return;
  pthread_mutex_lock(&lender->lock);
  lender->socket = -1;
  pthread_mutex_unlock(&lender->lock);
}

void ls_feed_close(struct ls_feed_lender* lender) {
  if (getpid() != lender->pid) return;
  pthread_mutex_lock(&lender->lock);
  lender->socket = -1;
  end_use(lender);
}

static int lend(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket, struct ls_feed_batch* batch) {
  if (slot >= lender->slots) return LS_FEED_DAMAGED;
  memcpy(batch, slot_at(lender, slot), sizeof *batch);
  if (batch->ticket != ticket || batch->items > lender->capacity || batch->skipped > lender->capacity - batch->items)
    return LS_FEED_DAMAGED;
  batch->state[LS_FEED_STATE - 1] = '\0';
  lender->lease[slot].ticket = ticket;
  lender->lease[slot].shares = 1;
  ++lender->lent;
  ++lender->uses;
  return (int)slot;
}

int ls_feed_take(struct ls_feed_lender* lender, uint64_t ticket, int timeout_ms, struct ls_feed_batch* batch) {
  if (getpid() != lender->pid) return LS_FEED_FORKED;
  pthread_mutex_lock(&lender->lock);
  const int socket = lender->socket;
  const int all_lent = lender->lent == lender->slots;
  pthread_mutex_unlock(&lender->lock);
  if (all_lent) return LS_FEED_ALL_LENT;
  int found = ls_feed_await(lender->ring, ticket, socket, timeout_ms);
  if (found < 0) return found;
  pthread_mutex_lock(&lender->lock);
  found = lend(lender, (uint32_t)found, ticket, batch);
  pthread_mutex_unlock(&lender->lock);
  return found;
}

static int is_lent(const struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket) {
  return lender->lease[slot].shares > 0 && lender->lease[slot].ticket == ticket;
}

static void end_lease(struct ls_feed_lender* lender, uint32_t slot) {
  lender->lease[slot].shares = 0;
  --lender->lent;
  ls_feed_release(lender->ring, slot, lender->socket);
}

void ls_feed_drop(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket) {
  if (getpid() != lender->pid) return;
  pthread_mutex_lock(&lender->lock);
  if (is_lent(lender, slot, ticket)) {
    if (lender->lease[slot].shares == 1)
      end_lease(lender, slot);
    else
      --lender->lease[slot].shares;
  }
  end_use(lender);
}

void ls_feed_give_back(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket) {
  if (getpid() != lender->pid) return;
  pthread_mutex_lock(&lender->lock);
  if (is_lent(lender, slot, ticket)) end_lease(lender, slot);
  pthread_mutex_unlock(&lender->lock);
}

static void delete_shown(struct dl_managed* managed) {
  struct shown* shown = (struct shown*)managed;
  ls_feed_drop(shown->lender, shown->slot, shown->ticket);
  free(shown);
}

void* ls_feed_tensor(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket, const struct ls_feed_view* view) {
  struct shown* shown = malloc(sizeof *shown);
  if (shown == NULL) return NULL;
  const struct ls_feed_batch* batch = (const struct ls_feed_batch*)slot_at(lender, slot);
  memcpy(shown->shape, view->shape, sizeof shown->shape);
  memcpy(shown->strides, view->strides, sizeof shown->strides);
  shown->shape[0] = batch->items;
  shown->lender = lender;
  shown->slot = slot;
  shown->ticket = ticket;
  shown->managed = (struct dl_managed){{slot_at(lender, slot) + view->offset, DL_CPU, 0, view->dimensions, view->code,
                                        view->bits, 1, shown->shape, shown->strides, 0},
                                       NULL,
                                       delete_shown};
  if (getpid() != lender->pid) return shown; /* a share in nothing; its deleter drops nothing either */
  pthread_mutex_lock(&lender->lock);
  if (is_lent(lender, slot, ticket)) ++lender->lease[slot].shares;
  ++lender->uses;
  pthread_mutex_unlock(&lender->lock);
  return shown;
}

void ls_feed_drop_tensor(void* tensor) { delete_shown(tensor); }
