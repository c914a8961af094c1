/* How long a call of this thread waits: its limit, or, of a wait in slices (ls_stage_slices), until the slice is over;
 * the limit counts from the first slice on, so that patience and what errors say of it are those of one call. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Once in each call that waits; ls_slice_over() is of this call from then on. */
int64_t ls_wait_deadline(double timeout_s);
bool ls_slice_over(void);
/* True once in each wait, in whichever of its slices. */
bool ls_wait_is_new(void);
