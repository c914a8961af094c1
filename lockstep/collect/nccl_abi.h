/* What NCCL's profiler plugins are called with, versions 1 to 6 (NCCL 2.23 to 2.29): offsets and numbers, not types,
 * since the versions differ in the middle of their structs. x86-64 and aarch64. docs/formats/nccl_profiler.md has the
 * table.
 */
#ifndef LOCKSTEP_COLLECT_NCCL_ABI_H_
#define LOCKSTEP_COLLECT_NCCL_ABI_H_

#include <stdint.h>

enum nccl_event {
  NCCL_GROUP = 1,
  NCCL_COLL = 2,
  NCCL_P2P = 4,
  NCCL_PROXY_OP = 8,
  NCCL_PROXY_STEP = 16,
  NCCL_KERNEL_CHANNEL = 64,
};

/* Of a proxy's step: it enters this wait. */
enum nccl_state {
  NCCL_SEND_GPU_WAIT = 8, /* for the own device to have the data */
  NCCL_SEND_WAIT = 9,     /* for the network to have sent it */
  NCCL_RECV_WAIT = 10,    /* for the data to come */
  NCCL_RECV_FLUSH_WAIT = 11,
  NCCL_RECV_GPU_WAIT = 12,  /* for the own device to take it */
  NCCL_SEND_PEER_WAIT = 20, /* for the receiver to be ready; from version 4 on */
};

/* Of a channel's kernel: its argument is when it ended, by the device's clock in ns. From version 4 on. */
enum { NCCL_KERNEL_CHANNEL_STOP = 22 };

enum nccl_result { NCCL_SUCCESS = 0, NCCL_INTERNAL_ERROR = 3 };

/* Offsets in an event's descriptor. */
enum nccl_descriptor {
  NCCL_AT_TYPE = 0, /* u8, from version 5 on u64 */
  NCCL_AT_PARENT = 8,
  NCCL_AT_RANK = 16,
  NCCL_AT_COMM_HASH_1 = 32, /* versions 1 to 3, of collectives and transfers */
  NCCL_AT_COLL_FUNC_1 = 48, /* version 1: a number (u8); 2 and 3: text */
  NCCL_AT_P2P_FUNC_1 = 40,
  NCCL_AT_P2P_PEER_1 = 72,
  NCCL_AT_COLL_FUNC_4 = 32, /* text */
  NCCL_AT_COLL_COUNT_4 = 56,
  NCCL_AT_COLL_TYPE_4 = 72, /* text */
  NCCL_AT_COLL_CHANNELS_4 = 80,
  NCCL_AT_COLL_ALGO_4 = 88, /* text */
  NCCL_AT_P2P_FUNC_4 = 24,
  NCCL_AT_P2P_PEER_4 = 56,
  NCCL_AT_P2P_CHANNELS_4 = 60,
  NCCL_AT_KERNEL_TIME_4 = 32, /* u64: when it began, as above */
  NCCL_AT_PROXY_PID = 24,
  NCCL_AT_PROXY_CHANNEL = 28,
  NCCL_AT_PROXY_PEER = 32,
  NCCL_AT_PROXY_IS_SEND = 44,
};

/* The plugin; the same in all versions but for what init takes. */
struct nccl_profiler {
  const char* name;
  void* init;
  int (*start_event)(void* context, void** handle, const void* descriptor);
  int (*stop_event)(void* handle);
  int (*record_event_state)(void* handle, int state, const void* arguments);
  int (*finalize)(void* context);
};

typedef int (*nccl_init_1)(void** context, int* mask); /* versions 1 to 3 */
typedef int (*nccl_init_4)(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank,
                           void* log);
typedef int (*nccl_init_5)(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank,
                           void* log); /* versions 5 and 6 */

#endif
