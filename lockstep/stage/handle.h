/* Which handles of a kind are open in this process: a call with one that was closed, or that is of another kind, is
 * refused before it reads any of it. A child of fork() knows those of its parent. Any thread. */
#ifndef LOCKSTEP_STAGE_HANDLE_H_
#define LOCKSTEP_STAGE_HANDLE_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_HANDLES = 4096 };
struct ls_handles {
  const void* open[LS_HANDLES]; /* NULL: free */
  uint32_t top;                 /* beyond it all are */
};

/* LS_STAGE_REFUSED if so many are open. */
int ls_handle_add(struct ls_handles*, const void* handle);
bool ls_handle_is_open(const struct ls_handles*, const void* handle);
void ls_handle_remove(struct ls_handles*, const void* handle);

#ifdef __cplusplus
}
#endif
#endif
