#define _GNU_SOURCE
#include "lockstep/client/feed_ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_MS 50 /* a service that died is seen within it */

/* -1: the batch is not there. */
static int slot_of(struct ls_feed_ring* ring, uint64_t ticket) {
  for (uint32_t i = 0; i < ring->slots && i < LS_FEED_MAX_SLOTS; ++i)
    if (__atomic_load_n(&ring->slot[i].filled, __ATOMIC_ACQUIRE) == ticket + 1) return (int)i;
  return -1;
}

static uint32_t* bell_of(struct ls_feed_ring* ring) { return (uint32_t*)&ring->bell; }

static void sleep_until_bell(struct ls_feed_ring* ring, uint64_t ticket, int at_most_ms) {
  const uint32_t seen = __atomic_load_n(bell_of(ring), __ATOMIC_SEQ_CST);
  const struct timespec slice = {at_most_ms / 1000, at_most_ms % 1000 * 1000000L};
  __atomic_store_n(&ring->sleeping, 1, __ATOMIC_SEQ_CST);
  if (slot_of(ring, ticket) < 0) syscall(SYS_futex, bell_of(ring), FUTEX_WAIT, seen, &slice, NULL, 0);
  __atomic_store_n(&ring->sleeping, 0, __ATOMIC_RELAXED);
}

static int news(int socket) {
  struct pollfd peer = {socket, POLLIN | POLLRDHUP, 0};
  if (poll(&peer, 1, 0) <= 0) return LS_FEED_NOT_YET;
  if ((peer.revents & POLLIN) != 0) { /* POLLIN is also how a packet socket tells of its end */
    char first;
    return recv(socket, &first, 1, MSG_PEEK | MSG_DONTWAIT) > 0 ? LS_FEED_TOLD : LS_FEED_GONE;
  }
  return LS_FEED_GONE;
}

int ls_feed_await(struct ls_feed_ring* ring, uint64_t ticket, int socket, int timeout_ms) {
  for (int left = timeout_ms;; left -= SLICE_MS) {
    int slot = slot_of(ring, ticket);
    if (slot >= 0) return slot;
    const int told = news(socket);
    slot = slot_of(ring, ticket); /* it may have died after it had filled it */
    if (slot >= 0) return slot;
    if (told != LS_FEED_NOT_YET || left <= 0) return told;
    sleep_until_bell(ring, ticket, left < SLICE_MS ? left : SLICE_MS);
  }
}

void ls_feed_release(struct ls_feed_ring* ring, uint32_t slot, int socket) {
  if (slot >= LS_FEED_MAX_SLOTS) return;
  struct ls_feed_slot* state = &ring->slot[slot];
  __atomic_store_n(&state->released, __atomic_load_n(&state->filled, __ATOMIC_RELAXED), __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&ring->starving, __ATOMIC_SEQ_CST) == 0) return;
  if (__atomic_exchange_n(&ring->starving, 0, __ATOMIC_SEQ_CST) == 0 || socket < 0) return;
  send(socket, "r", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ls_feed_publish(struct ls_feed_ring* ring, uint32_t slot, uint64_t ticket) {
  __atomic_store_n(&ring->slot[slot].filled, ticket + 1, __ATOMIC_RELEASE);
  __atomic_add_fetch(bell_of(ring), 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&ring->sleeping, __ATOMIC_SEQ_CST) != 0)
    syscall(SYS_futex, bell_of(ring), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}
