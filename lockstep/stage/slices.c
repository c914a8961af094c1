#include "lockstep/stage/slices.h"

#include "lockstep/stage/segment.h"
#include "lockstep/stage/stage.h"

/* Waits of a thread, one within another where a signal's handler waits while what it interrupts does: the innermost is
 * the last. The first is that of calls which wait as long as they were told. */
struct wait {
  int64_t slice; /* nanoseconds; 0: no slices */
  int64_t begin;
  bool told;
};

enum { kMostWaits = 8 };

static __thread struct wait waits[kMostWaits];
static __thread int depth; /* may be beyond the last: those share it */
static __thread int64_t slice_end;

static struct wait* innermost(void) { return &waits[depth < kMostWaits ? depth : kMostWaits - 1]; }

void ls_stage_slices(double slice_s) {
  if (slice_s <= 0) {
    if (depth > 0) --depth;
    return;
  }
  ++depth;
  *innermost() = (struct wait){.slice = (int64_t)((slice_s < 1e9 ? slice_s : 1e9) * 1e9), .begin = ls_stage_now_ns()};
}

int64_t ls_wait_deadline(double timeout_s) {
  struct wait* wait = innermost();
  const int64_t now = ls_stage_now_ns(), deadline = ls_stage_deadline(timeout_s);
  slice_end = wait->slice > 0 ? now + wait->slice : INT64_MAX;
  if (wait->slice == 0) wait->told = false;
  return wait->slice > 0 ? deadline - (now - wait->begin) : deadline;
}

bool ls_slice_over(void) { return ls_stage_now_ns() >= slice_end; }

bool ls_wait_is_new(void) {
  struct wait* wait = innermost();
  const bool is_new = !wait->told;
  wait->told = true;
  return is_new;
}
