/* The 64-byte record: what workers and plugins tell Lockstep, live (ring.h) and on disk (file.h). Byte-exact layout:
 * docs/formats/record.md.
 *
 * Invariants: every record says how many 64-byte cells follow it (`more`), so a reader skips kinds that it does not
 * know, and counts them; names are interned to 32-bit ids by definition records, whose text lies in the following
 * cells; definitions are sent again in a new epoch. One 64-bit time per record, all else are 32-bit deltas in units of
 * 2^delta_shift ns. C17 and C++20; libc only.
 */
#ifndef LOCKSTEP_RECORD_RECORD_H_
#define LOCKSTEP_RECORD_RECORD_H_

#include <stdint.h>

#ifdef __cplusplus
#define LS_RECORD_ASSERT static_assert
extern "C" {
#else
#define LS_RECORD_ASSERT _Static_assert
#endif

#define LS_CELL_BYTES 64u

/* Window is a reserved number: no writer sends it yet, and readers skip and count it. */
enum ls_record_kind {
  LS_RECORD_STEP = 1,
  LS_RECORD_OP = 2,
  LS_RECORD_TRANSFER = 3,
  LS_RECORD_WINDOW = 4,
  LS_RECORD_DEFINITION = 5,
  LS_RECORD_SNAPSHOT = 6,
  LS_RECORD_DATA = 7,
};

struct ls_step_body {
  int64_t step;      /* as the script numbers it */
  double loss;       /* NaN = not given */
  uint32_t duration; /* since the step before ended; delta */
  uint32_t blocked;  /* of it, time spent waiting for state copies; delta */
  uint32_t rank;
  /* Of it, what the script was at, one after the other; what is left comes last. All 0: not known; delta. */
  uint32_t save, data, forward, backward, optimizer;
};

struct ls_definition_body {
  uint32_t id;    /* from now on, in this epoch of this rank, */
  uint32_t table; /* in this name space, */
  uint32_t bytes; /* stands for this much UTF-8 text in the `more` cells that follow */
  uint32_t rank;
  uint8_t reserved[32];
};

/* What a process was doing. Who knows no more than the first two takes what else is told for the second. */
enum ls_process { LS_PROCESS_GONE, LS_PROCESS_RAN, LS_PROCESS_STOPPED };

/* In files: what a trail said of its process when it was read. Behind it, in the same record: a cell with the host's
 * name, a cell with the trail's counters, two cells for each communicator, then the ops that were under way. The ops
 * and transfers that had ended since the snapshot before follow as records of their own. */
struct ls_snapshot_body {
  int64_t wall_minus_boot_ns;
  uint32_t rank, world, pid; /* of the job */
  uint32_t communicators;
  uint32_t under_way;
  uint32_t alive; /* an ls_process */
  char source[16];
};

/* Numbers are for good; names are PyTorch's. */
enum ls_function {
  LS_OTHER = 0,
  LS_ALL_REDUCE = 1,
  LS_ALL_GATHER = 2,
  LS_REDUCE_SCATTER = 3,
  LS_BROADCAST = 4,
  LS_REDUCE = 5,
  LS_GATHER = 6,
  LS_SCATTER = 7,
  LS_ALL_TO_ALL = 8,
  LS_BARRIER = 9,
  LS_SEND = 10,
  LS_RECEIVE = 11,
  LS_FUNCTIONS = 12,
};

/* Launched: nothing else is known of it, not even whether it has ended. */
enum ls_op_state { LS_OP_LAUNCHED = 1, LS_OP_STARTED = 2, LS_OP_COMPLETED = 3, LS_OP_FAILED = 4 };

/* How the messages of a collective go. */
enum ls_algorithm { LS_ALGORITHM_UNKNOWN = 0, LS_ALGORITHM_RING = 1, LS_ALGORITHM_OTHER = 2 };

#define LS_NO_PEER (-1)
#define LS_NO_TAG UINT32_MAX
#define LS_UNKNOWN UINT32_MAX
#define LS_OWN_DEVICE 255 /* no function: what an op awaits */

/* One op of one rank. Under way: time_ns is when it was launched, and duration is 0. */
struct ls_op_body {
  uint64_t bytes;        /* that the rank sent for it */
  uint32_t communicator; /* its entry in the trail */
  uint32_t number;       /* of the rank's collectives on the communicator, in the order of launch, from 1; else 0 */
  uint32_t tag;          /* the library's own number of the op, the same on all members; LS_NO_TAG: none */
  uint32_t rank;         /* of the job */
  int32_t peer;          /* of a send or receive: place in the communicator; of a collective: see ls_op_brings */
  uint32_t duration;     /* from launch to end; delta */
  uint32_t messages;     /* that it waited for until now */
  int32_t waits_for;     /* under way: whose message it waits for; place, or LS_NO_PEER */
  uint8_t function;      /* enum ls_function */
  uint8_t state;         /* enum ls_op_state */
  uint8_t awaits;    /* under way: LS_SEND or LS_RECEIVE, what waits_for is about; LS_OWN_DEVICE: that has not come */
  uint8_t algorithm; /* enum ls_algorithm */
  uint32_t alone;    /* since the process left its collective before; of a send or receive: how long it was waited
                        for; delta; LS_UNKNOWN: there was none, not known */
};

/* What a rank's messages of one op to or from one peer came to: how long they held the rank up. */
struct ls_transfer_body {
  uint64_t bytes;
  uint32_t communicator, number, rank; /* as of its op */
  int32_t peer;                        /* place in the communicator */
  uint32_t count;                      /* messages */
  uint32_t waited;                     /* until they were sent, or there; delta */
  uint32_t first;                      /* of it, for the first message; delta */
  uint32_t own;                        /* until the rank's own device had what to send, or took what came; delta */
  uint32_t credit; /* of a send: until the receiver was ready, which `waited` then leaves out; delta, or LS_UNKNOWN */
  uint16_t channel;
  uint8_t direction; /* LS_SEND or LS_RECEIVE */
  uint8_t port;      /* of the network device */
};

/* A rank waited for batches of a data set that had not been prepared in time, or made of them what it trains on; what
 * it took, in parts that add up. While a wait lasts: time_ns is its begin, and the parts are 0. */
struct ls_data_body {
  uint32_t rank;     /* of the job */
  uint32_t waits;    /* for so many batches; 1, or 0 of `own` alone; more where a reader has summed several */
  uint32_t gone;     /* there was no service; delta */
  uint32_t behind;   /* it was at work for others, or had not been asked yet; delta */
  uint32_t read;     /* it read what was wanted; delta */
  uint32_t decode;   /* it decoded and scaled it; delta */
  uint32_t own;      /* the script's own functions ran on the batch; delta */
  uint16_t threads;  /* of the service */
  uint8_t busy;      /* of their time meanwhile, for whomever; percent */
  uint8_t relayed;   /* 1: batches come from another machine, and `read` has their way too */
  char data_set[16]; /* terminated, cut short */
};
LS_RECORD_ASSERT(sizeof(struct ls_data_body) == 48, "docs/formats/record.md");

struct ls_record {
  uint8_t kind; /* enum ls_record_kind */
  uint8_t delta_shift;
  uint16_t more;   /* further cells that belong to this record */
  uint32_t epoch;  /* low 32 bits: what a dead epoch left in a ring can be told from the living */
  int64_t time_ns; /* end of what is described, CLOCK_BOOTTIME */
  union {
    struct ls_step_body step;
    struct ls_definition_body definition;
    struct ls_snapshot_body snapshot;
    struct ls_op_body op;
    struct ls_transfer_body transfer;
    struct ls_data_body data;
    uint8_t bytes[48];
  } body;
};
LS_RECORD_ASSERT(sizeof(struct ls_record) == LS_CELL_BYTES, "docs/formats/record.md");

/* The smallest shift at which `longest_ns` fits 32 bits: resolution 1 ns up to 4.3 s, 2 ns up to 8.6 s, and so on. */
static inline uint8_t ls_delta_shift(int64_t longest_ns) {
  uint8_t shift = 0;
  while (longest_ns >> shift > UINT32_MAX) ++shift;
  return shift;
}
static inline uint32_t ls_delta(int64_t ns, uint8_t shift) { return ns > 0 ? (uint32_t)(ns >> shift) : 0; }
static inline int64_t ls_delta_ns(uint32_t delta, uint8_t shift) { return (int64_t)delta << shift; }

/* Nanoseconds. */
struct ls_data_parts {
  int64_t gone, behind, read, decode, own;
};

/* In units in which each fits. */
static inline void ls_data_set_parts(struct ls_record* data, struct ls_data_parts parts) {
  const int64_t all[] = {parts.gone, parts.behind, parts.read, parts.decode, parts.own};
  int64_t sum = 0;
  for (unsigned i = 0; i < sizeof all / sizeof *all; ++i) sum += all[i] > 0 ? all[i] : 0;
  data->delta_shift = ls_delta_shift(sum);
  data->body.data.gone = ls_delta(parts.gone, data->delta_shift);
  data->body.data.behind = ls_delta(parts.behind, data->delta_shift);
  data->body.data.read = ls_delta(parts.read, data->delta_shift);
  data->body.data.decode = ls_delta(parts.decode, data->delta_shift);
  data->body.data.own = ls_delta(parts.own, data->delta_shift);
}

/* Of a collective to which every rank brings as many bytes: how many that are; -1: not known. It stands where others
 * have their peer. */
static inline int32_t ls_op_brings(const struct ls_op_body* op) {
  const int is_even = op->function == LS_ALL_REDUCE || op->function == LS_BROADCAST || op->function == LS_REDUCE;
  return is_even ? op->peer : -1;
}

/* Of an op: what the process did by itself before it; ns, or -1: not known. Before its duration is set. */
static inline void ls_op_set_alone(struct ls_record* op, int64_t ns) {
  op->delta_shift = ls_delta_shift(ns);
  const uint32_t alone = ls_delta(ns, op->delta_shift);
  op->body.op.alone = ns < 0 || alone == LS_UNKNOWN ? LS_UNKNOWN : alone;
}

/* In units in which both fit. */
static inline void ls_op_set_duration(struct ls_record* op, int64_t ns) {
  uint8_t shift = ls_delta_shift(ns);
  if (op->body.op.alone != LS_UNKNOWN) {
    if (shift < op->delta_shift) shift = op->delta_shift;
    op->body.op.alone >>= shift - op->delta_shift;
  }
  op->delta_shift = shift;
  op->body.op.duration = ls_delta(ns, shift);
}
#ifdef __cplusplus
}
#endif
#endif
