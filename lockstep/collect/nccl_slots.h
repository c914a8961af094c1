/* What is under way in NCCL, as the plugin keeps it: ops, what its proxies and kernels do for them, and their steps.
 *
 * Invariants: a handle is a number with a generation, never an address: what comes late, twice, or from another process
 * finds nothing. Slots are never freed memory: whoever still looks at one that was given back sees what is in it next,
 * and harms nothing. Threads: any. Cost: a few atomic operations; nothing waits or allocates.
 *
 *   struct slot* slot = take_slot();                        // NULL: none is free
 *   slot->now.parent = parent;
 *   *handle = publish(slot, kProxyOp, communicator);
 *   struct content* proxy = content_of(handle, kProxyOp);   // NULL: it is over
 *   if (give_back(handle)) ...                              // false: another thread was first
 */
#ifndef LOCKSTEP_COLLECT_NCCL_SLOTS_H_
#define LOCKSTEP_COLLECT_NCCL_SLOTS_H_

#include "lockstep/record/trail.h"

enum { kSlots = 8192, kIndexBits = 16 };
enum { kGroupHandle = 1 << kIndexBits }; /* of all groups: no slot has it */
enum kind { kOp = 1, kProxyOp = 2, kProxyStep = 3, kKernel = 4 };

struct content {
  uint64_t parent; /* handle: of a proxy op or a kernel its op, of a step its proxy op */
  /* an op */
  ls_handle place;
  struct ls_record record;
  uint64_t ordinal;    /* of the process's ops */
  int64_t arrived_ns;  /* when the own device came; 0: not known */
  int64_t alone_ns;    /* what it did before, since the op before had ended; -1: not known */
  uint32_t progress;   /* kEnqueued, kHadWorkers, and below them how many proxy ops and kernels work for it */
  bool told_launched;  /* a record says that it was launched */
  bool device_awaited; /* its place says so */
  bool by_kernels;     /* its kernels are watched: they say when the device came */
  uint32_t kernels;    /* how many of them have not ended */
  int64_t left_ns;     /* when the last of them ended; 0: not known */
  /* a proxy op; sums in ticks, added to by one proxy thread */
  struct ls_transfer_body sums;
  uint64_t waited, first, own, credit;
  bool told_credit; /* versions 1 to 3 don't */
  /* a step; ticks */
  int32_t state;
  uint64_t since, of_step;
};
enum { kEnqueued = 1 << 30, kHadWorkers = 1 << 29, kWorking = kHadWorkers - 1 };

struct slot {
  uint32_t generation; /* odd: in use */
  uint8_t kind;
  uint16_t communicator;
  struct content now;
};

extern struct slot ls_nccl_slots[kSlots];
extern uint64_t ls_nccl_slots_used[kSlots / 64]; /* a bit for each */

/* NULL: none is free. It has no handle before `publish`, and still what was in it before. */
struct slot* take_slot(void);
/* The pages of the slots are there from here on. */
void touch_slots(void);

static inline uint64_t index_of(uint64_t handle) { return (handle & ((1u << kIndexBits) - 1)) - 1; }

static inline struct content* content_of(uint64_t handle, enum kind kind) {
  const uint64_t index = index_of(handle);
  if (index >= kSlots) return NULL;
  struct slot* slot = &ls_nccl_slots[index];
  const uint32_t generation = (uint32_t)(handle >> kIndexBits);
  const bool valid = generation % 2 == 1 && __atomic_load_n(&slot->generation, __ATOMIC_SEQ_CST) == generation;
  return valid && __atomic_load_n(&slot->kind, __ATOMIC_RELAXED) == kind ? &slot->now : NULL;
}

static inline uint64_t handle_of(const struct slot* slot, uint32_t generation) {
  return (uint64_t)generation << kIndexBits | (uint64_t)(slot - ls_nccl_slots + 1);
}

static inline void* publish(struct slot* slot, enum kind kind, uint32_t communicator) {
  __atomic_store_n(&slot->kind, (uint8_t)kind, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->communicator, (uint16_t)communicator, __ATOMIC_RELAXED);
  return (void*)(uintptr_t)handle_of(slot, __atomic_add_fetch(&slot->generation, 1, __ATOMIC_RELEASE));
}

/* Of what is under way there on the communicator; 0: nothing is. */
static inline uint64_t handle_in(const struct slot* slot, uint32_t communicator) {
  const uint32_t generation = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
  const bool is_of_it = generation % 2 == 1 && __atomic_load_n(&slot->communicator, __ATOMIC_RELAXED) == communicator;
  return is_of_it ? handle_of(slot, generation) : 0;
}

/* False: another thread did. The handle is of nothing from here on, but nobody takes the slot before it is free. */
static inline bool retire(uint64_t handle) {
  uint32_t generation = (uint32_t)(handle >> kIndexBits);
  return __atomic_compare_exchange_n(&ls_nccl_slots[index_of(handle)].generation, &generation, generation + 1, false,
                                     __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
}
static inline void free_slot(uint64_t handle) {
  const uint64_t index = index_of(handle);
  __atomic_fetch_and(&ls_nccl_slots_used[index / 64], ~(1ull << index % 64), __ATOMIC_RELEASE);
}

/* False: another thread gave it back. */
static inline bool give_back(uint64_t handle) {
  const bool ours = retire(handle);
  if (ours) free_slot(handle);
  return ours;
}

#endif
