#include "lockstep/collect/nccl_slots.h"

struct slot ls_nccl_slots[kSlots];
uint64_t ls_nccl_slots_used[kSlots / 64];

/* Of the first 64 with a free one the next in turn: few cache lines go round, for they are the job's, and none comes
 * again at once. */
struct slot* take_slot(void) {
  static uint32_t turn;
  for (size_t word = 0; word < kSlots / 64; ++word) {
    uint64_t taken;
    while ((taken = __atomic_load_n(&ls_nccl_slots_used[word], __ATOMIC_RELAXED)) != UINT64_MAX) {
      const uint32_t from = __atomic_load_n(&turn, __ATOMIC_RELAXED) % 64;
      const uint64_t behind = ~taken >> from << from, bits = behind != 0 ? behind : ~taken;
      const uint32_t at = (uint32_t)__builtin_ctzll(bits);
      __atomic_store_n(&turn, at + 1, __ATOMIC_RELAXED);
      if ((__atomic_fetch_or(&ls_nccl_slots_used[word], 1ull << at, __ATOMIC_ACQUIRE) >> at & 1) == 0)
        return &ls_nccl_slots[word * 64 + at];
    }
  }
  return NULL;
}

void touch_slots(void) {
  for (size_t i = 0; i < kSlots; ++i) __atomic_fetch_or(&ls_nccl_slots[i].kind, 0, __ATOMIC_RELAXED);
}
