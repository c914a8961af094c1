#include "lockstep/stage/handle.h"

#include <stddef.h>

#include "lockstep/stage/segment.h"
#include "lockstep/stage/stage.h"

static bool replace(const void** place, const void* from, const void* to) {
  return __atomic_compare_exchange_n(place, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void raise_to(uint32_t* top, uint32_t least) {
  uint32_t seen = __atomic_load_n(top, __ATOMIC_RELAXED);
  while (seen < least && !__atomic_compare_exchange_n(top, &seen, least, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
  }
}

int ls_handle_add(struct ls_handles* handles, const void* handle) {
  for (uint32_t i = 0; i < LS_HANDLES; ++i) {
    if (!replace(&handles->open[i], NULL, handle)) continue;
    raise_to(&handles->top, i + 1);
    return LS_STAGE_OK;
  }
  return ls_stage_fail(LS_STAGE_REFUSED, "this process has %d open already: close some", LS_HANDLES);
}

bool ls_handle_is_open(const struct ls_handles* handles, const void* handle) {
  const uint32_t top = __atomic_load_n(&handles->top, __ATOMIC_ACQUIRE);
  for (uint32_t i = 0; handle != NULL && i < top; ++i) {
    if (__atomic_load_n(&handles->open[i], __ATOMIC_ACQUIRE) == handle) return true;
  }
  return false;
}

void ls_handle_remove(struct ls_handles* handles, const void* handle) {
  for (uint32_t i = 0; i < LS_HANDLES; ++i) {
    if (replace(&handles->open[i], handle, NULL)) return;
  }
}
