/* A rank's mapping of its ring (feed_ring.h), and who in this process still looks at which batch. A batch is lent: each
 * tensor made of it, and whoever took it, has a share in it, and its slot goes back with the last one. The mapping
 * stays until nobody has a share in anything, whatever becomes of the service. In this library and not in Python, since
 * a batch costs what of it the job's own work has displaced from the caches.
 *
 * Any thread may drop shares; one at a time takes. After a fork the child has the mapping and no say: whatever it drops
 * stays lent. C17 and C++20; libc and pthread only.
 */
#ifndef LOCKSTEP_CLIENT_FEED_LEASE_H_
#define LOCKSTEP_CLIENT_FEED_LEASE_H_

#include <stdint.h>

#include "lockstep/client/feed_ring.h"

#define LS_FEED_MAX_DIMENSIONS 8

struct ls_feed_lender;

/* What a tensor shows of a slot: the first dimension is that of the batch's items. Strides are in elements. */
struct ls_feed_view {
  uint64_t offset;    /* in the slot, bytes */
  uint8_t code, bits; /* of an element, as DLPack says it: 0 signed, 1 unsigned, 2 float, 5 complex */
  uint16_t reserved;
  int32_t dimensions;
  int64_t shape[LS_FEED_MAX_DIMENSIONS], strides[LS_FEED_MAX_DIMENSIONS]; /* shape[0] is not looked at */
};

/* More of what may come in place of a slot (enum ls_feed_result). */
enum {
  LS_FEED_ALL_LENT = -4, /* all slots are: a batch that is kept would have to be dropped first */
  LS_FEED_FORKED = -5,   /* another process opened it */
  LS_FEED_DAMAGED = -6,  /* the slot holds what the service does not write */
};

#ifdef __cplusplus
extern "C" {
#endif

#define LS_FEED_API __attribute__((visibility("default")))

/* Maps the ring; `socket` is where the service hears of free slots. NULL: it is no ring of this version, or there is no
 * memory for it. */
LS_FEED_API struct ls_feed_lender* ls_feed_open(int fd, int socket);
LS_FEED_API char* ls_feed_memory(const struct ls_feed_lender* lender);
/* The service is gone, or no longer wanted: from now on nobody is told. */
LS_FEED_API void ls_feed_hang_up(struct ls_feed_lender* lender);
/* The last call but for those that drop shares. */
LS_FEED_API void ls_feed_close(struct ls_feed_lender* lender);

/* As ls_feed_await, and lends the batch: the caller has one share in the slot that is returned. `batch` is a copy of
 * its head. */
LS_FEED_API int ls_feed_take(struct ls_feed_lender* lender, uint64_t ticket, int timeout_ms,
                             struct ls_feed_batch* batch);
LS_FEED_API void ls_feed_drop(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket);
/* Gives the slot back though there are shares left: those show other items from then on, and are to be dropped still.
 */
LS_FEED_API void ls_feed_give_back(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket);

/* A share of its own as a DLManagedTensor of DLPack (before 1.0: without version): its deleter drops it. The batch is
 * lent to the caller meanwhile. NULL: no memory. */
LS_FEED_API void* ls_feed_tensor(struct ls_feed_lender* lender, uint32_t slot, uint64_t ticket,
                                 const struct ls_feed_view* view);
/* What nobody has taken over. */
LS_FEED_API void ls_feed_drop_tensor(void* tensor);

#ifdef __cplusplus
}
#endif

#endif
