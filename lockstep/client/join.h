/* How a worker joins its job: one SOCK_SEQPACKET unix socket in the run directory, fixed-size messages, descriptors by
 * SCM_RIGHTS. The starter answers (it owns the board and the buffers and outlives agents). Both ends are on one
 * machine: native byte order.
 *
 *   worker -> HELLO{rank, epoch, pid}     starter -> OK + [board fd, record ring fd]
 *   worker -> BUFFERS{bytes per slot}     starter -> OK + [a memfd for each slot], or REFUSED + text
 *
 * The first that says HELLO is the rank of its epoch for as long as it lives; others are refused, for what it starts
 * has its environment. A buffer request gets the memfds that are there, with their content, grown if it is larger.
 * Environment of the attach contract: LOCKSTEP_RUN (directory), LOCKSTEP_RANK (else RANK), LOCKSTEP_EPOCH.
 */
#ifndef LOCKSTEP_CLIENT_JOIN_H_
#define LOCKSTEP_CLIENT_JOIN_H_

#include <stdint.h>

#define LS_JOIN_SOCKET "worker.sock" /* in the run directory */
#define LS_JOIN_VERSION 2u

enum ls_join_kind { LS_JOIN_HELLO = 1, LS_JOIN_BUFFERS = 2, LS_JOIN_OK = 100, LS_JOIN_REFUSED = 101 };

struct ls_join_message { /* 320 bytes */
  uint32_t kind, version;
  int32_t rank, pid;
  uint64_t epoch;
  uint64_t bytes;      /* BUFFERS: wanted per slot; OK: what each slot can hold */
  uint32_t world_size; /* OK */
  uint32_t reserved[7];
  char text[256]; /* REFUSED: one sentence for the user, NUL-terminated */
};

#endif
