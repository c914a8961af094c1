#include "lockstep/stage/slices.h"

#include "lockstep/stage/segment.h"
#include "lockstep/stage/stage.h"

static __thread struct {
  int64_t slice; /* nanoseconds; 0: calls wait as long as they were told */
  int64_t begin, end;
  bool told;
} wait;

void ls_stage_slices(double slice_s) {
  wait.slice = slice_s > 0 ? (int64_t)((slice_s < 1e9 ? slice_s : 1e9) * 1e9) : 0;
  wait.begin = ls_stage_now_ns();
  wait.told = false;
}

int64_t ls_wait_deadline(double timeout_s) {
  const int64_t now = ls_stage_now_ns(), deadline = ls_stage_deadline(timeout_s);
  wait.end = wait.slice > 0 ? now + wait.slice : INT64_MAX;
  if (wait.slice == 0) wait.told = false;
  return wait.slice > 0 ? deadline - (now - wait.begin) : deadline;
}

bool ls_slice_over(void) { return ls_stage_now_ns() >= wait.end; }

bool ls_wait_is_new(void) {
  const bool is_new = !wait.told;
  wait.told = true;
  return is_new;
}
