/* liblockstep-nccl-profiler.so: NCCL loads it (NCCL_PROFILER_PLUGIN) and calls it at each collective, at each op of its
 * proxies, and at each step of these; it keeps the trail of them. No CUDA needed, to build it or to load it.
 *
 * A collective's own stop says only that it was enqueued: it has ended when the proxies that worked for it have
 * stopped. One inside of a machine has none: of it only the launch is known (LS_OP_LAUNCHED), unless the kernels on its
 * channels are watched, too. They tell of every collective when the device began with it, and when it ended.
 *
 * Handles are numbers with a generation, never addresses: what comes late, twice, or from a proxy that serves another
 * process finds nothing, is counted, and changes nothing. Nothing here waits, allocates or fails its caller. A group's
 * handle is of nothing; it has one since NCCL up to 2.27 tells of no op in a group that has none.
 *
 *   LOCKSTEP_TRAILS       directory for the trails; without it the plugin says so once and is off
 *   LOCKSTEP_NCCL_EVERY   watch the proxies at every N-th collective only; default: at all
 *   LOCKSTEP_NCCL_KERNELS 1: watch the kernels, too, which gives NCCL's proxy thread work even inside of a machine
 */
#include "lockstep/collect/nccl_abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lockstep/collect/collector.h"
#include "lockstep/collect/nccl_slots.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- time ---- */

/* Steps come by the thousand, and reading the clock is most of what they cost: they are timed by the processor's
 * counter, which runs evenly; how fast, two looks at both tell. */
static inline uint64_t ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t now;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
  return now;
#else
  return (uint64_t)ls_collect_now();
#endif
}

static uint64_t begin_ticks;
static int64_t begin_ns; /* 0: not begun */

static void begin_time(void) {
  int64_t none = 0;
  const int64_t now = ls_collect_now();
  if (__atomic_load_n(&begin_ns, __ATOMIC_ACQUIRE) != 0) return;
  __atomic_store_n(&begin_ticks, ticks(), __ATOMIC_RELAXED);
  __atomic_compare_exchange_n(&begin_ns, &none, now, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

static double ns_of_tick(int64_t now_ns) {
  const uint64_t passed = ticks() - __atomic_load_n(&begin_ticks, __ATOMIC_RELAXED);
  return passed == 0 ? 0 : (double)(now_ns - __atomic_load_n(&begin_ns, __ATOMIC_ACQUIRE)) / (double)passed;
}

/* ---- communicators ---- */

/* A context is the number of a communicator in the trail, and 1: nothing that could be freed too early. */
static int* event_mask; /* NCCL's, of the whole process */
static int watched;     /* what we last put there */
static uint64_t launches, every = 1;
enum { kAlways = NCCL_COLL | NCCL_P2P, kProxies = NCCL_PROXY_OP | NCCL_PROXY_STEP };
static int workers = kProxies; /* what is watched of ops that are */

static void watch(int* mask, int events) {
  __atomic_store_n(&watched, events, __ATOMIC_RELAXED);
  __atomic_store_n(mask, events, __ATOMIC_RELAXED);
}

static void tell_why_no_trail(void) {
  static int told;
  const char* directory = getenv("LOCKSTEP_TRAILS");
  if (directory != NULL && *directory != '\0') return; /* whoever could not make it has said why */
  if (__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) == 0)
    fprintf(stderr, "lockstep: NCCL's collectives are not watched: LOCKSTEP_TRAILS is not set\n");
}

static int begin(int version, void** context, int* mask, uint64_t id, const char* name, int ranks, int rank) {
  struct ls_trail* trail = ls_collect_begin("nccl", rank, ranks);
  static uint64_t communicators; /* ever made: NCCL gives no address that would tell two from each other */
  const int index =
      trail == NULL ? -1 : ls_collect_communicator(trail, __atomic_add_fetch(&communicators, 1, __ATOMIC_RELAXED));
  if (index < 0) {
    if (trail == NULL) tell_why_no_trail();
    return NCCL_INTERNAL_ERROR; /* which turns the plugin off for this communicator */
  }
  begin_time();
  touch_slots();
  struct ls_communicator* own = &trail->communicator[index];
  own->rank = rank < 0 ? 0 : (uint32_t)rank;
  own->size = ranks < 0 ? 0 : (uint32_t)ranks;
  if (name != NULL) snprintf(own->name, sizeof own->name, "%s", name);
  __atomic_store_n(&own->id, id, __ATOMIC_RELEASE);
  const char* text = getenv("LOCKSTEP_NCCL_EVERY");
  const uint64_t wanted = text == NULL ? 1 : strtoull(text, NULL, 10);
  __atomic_store_n(&every, wanted == 0 ? 1 : wanted, __ATOMIC_RELAXED);
  const char* kernels = getenv("LOCKSTEP_NCCL_KERNELS");
  const bool by_kernels = version >= 4 && kernels != NULL && strcmp(kernels, "1") == 0;
  __atomic_store_n(&workers, by_kernels ? kProxies | NCCL_KERNEL_CHANNEL : kProxies, __ATOMIC_RELAXED);
  __atomic_store_n(&event_mask, mask, __ATOMIC_RELEASE);
  watch(mask, kAlways | __atomic_load_n(&workers, __ATOMIC_RELAXED));
  *context = (void*)(uintptr_t)(index + 1);
  return NCCL_SUCCESS;
}

/* All ranks of a job launch the same collectives, and so watch the same ones. */
static void sample(void) {
  int* mask = __atomic_load_n(&event_mask, __ATOMIC_ACQUIRE);
  const uint64_t one_of = __atomic_load_n(&every, __ATOMIC_RELAXED);
  if (one_of == 1 || mask == NULL) return;
  const bool this_one = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) % one_of == 0;
  watch(mask, this_one ? kAlways | __atomic_load_n(&workers, __ATOMIC_RELAXED) : kAlways);
}

/* ---- reading descriptors ---- */

static uint64_t word_at(const void* at, size_t offset) {
  uint64_t word;
  memcpy(&word, (const char*)at + offset, sizeof word);
  return word;
}
static int32_t int_at(const void* at, size_t offset) {
  int32_t number;
  memcpy(&number, (const char*)at + offset, sizeof number);
  return number;
}
static uint8_t byte_at(const void* at, size_t offset) { return ((const uint8_t*)at)[offset]; }

static uint8_t function_named(const char* name) {
  static const struct {
    const char* name;
    uint8_t function;
  } all[] = {{"AllReduce", LS_ALL_REDUCE}, {"AllGather", LS_ALL_GATHER}, {"ReduceScatter", LS_REDUCE_SCATTER},
             {"Broadcast", LS_BROADCAST},  {"Reduce", LS_REDUCE},        {"Send", LS_SEND},
             {"Recv", LS_RECEIVE},         {"AlltoAll", LS_ALL_TO_ALL},  {"AllToAll", LS_ALL_TO_ALL},
             {"Gather", LS_GATHER},        {"Scatter", LS_SCATTER}};
  for (size_t i = 0; name != NULL && i < sizeof all / sizeof *all; ++i)
    if (strcmp(name, all[i].name) == 0) return all[i].function;
  return LS_OTHER;
}

static uint8_t function_of(int version, uint64_t type, const void* descriptor) {
  static const uint8_t numbered[] = {LS_BROADCAST,  LS_REDUCE, LS_ALL_GATHER, LS_REDUCE_SCATTER,
                                     LS_ALL_REDUCE, LS_OTHER,  LS_SEND,       LS_RECEIVE};
  const size_t at = type == NCCL_COLL ? (version >= 4 ? NCCL_AT_COLL_FUNC_4 : NCCL_AT_COLL_FUNC_1)
                                      : (version >= 4 ? NCCL_AT_P2P_FUNC_4 : NCCL_AT_P2P_FUNC_1);
  if (version > 1) return function_named((const char*)(uintptr_t)word_at(descriptor, at));
  const uint8_t number = byte_at(descriptor, at);
  return number < sizeof numbered ? numbered[number] : LS_OTHER;
}

/* What NCCL calls a ring is a chain where there is a root: members send on what they heard. */
static uint8_t algorithm_of(const char* name, uint8_t function) {
  if (name == NULL) return LS_ALGORITHM_UNKNOWN;
  const bool rooted = function != LS_ALL_REDUCE && function != LS_ALL_GATHER && function != LS_REDUCE_SCATTER;
  return strcmp(name, "RING") == 0 && !rooted ? LS_ALGORITHM_RING : LS_ALGORITHM_OTHER;
}

/* ---- ops ---- */

/* When ops ended, of those that were seen to: by ordinal, the newest of each cell. The time is stored first. */
enum { kEnds = 128, kBefore = 32 };
static struct {
  uint64_t ordinal;
  int64_t at_ns;
} ends[kEnds];

static void note_end(uint64_t ordinal, int64_t at_ns) {
  __atomic_store_n(&ends[ordinal % kEnds].at_ns, at_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&ends[ordinal % kEnds].ordinal, ordinal, __ATOMIC_RELEASE);
}

/* When the last of the ops launched before had ended; -1: not known, as where one of them has not, or was not seen to.
 * What is further back than kBefore is over. */
static int64_t left_before(uint64_t ordinal) {
  int64_t left = -1;
  for (uint64_t i = 1; i <= kBefore && i < ordinal; ++i) {
    const uint64_t before = ordinal - i;
    if (__atomic_load_n(&ends[before % kEnds].ordinal, __ATOMIC_ACQUIRE) != before) return -1;
    const int64_t at = __atomic_load_n(&ends[before % kEnds].at_ns, __ATOMIC_RELAXED);
    if (at > left) left = at;
  }
  return left;
}

/* Of an op that is over the place is nobody's: then nothing is shown. */
static void show_device(const struct content* op, uint64_t handle, uint8_t awaits) {
  struct ls_trail* trail = ls_collect_trail();
  struct ls_record record = op->record;
  const ls_handle place = __atomic_load_n(&op->place, __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  record.body.op.state = LS_OP_STARTED;
  record.body.op.awaits = awaits;
  if (trail != NULL && content_of(handle, kOp) == op) ls_trail_set(trail, place, &record);
}

static void arrive_at(struct content* op, int64_t at_ns) {
  int64_t none = 0;
  if (!__atomic_compare_exchange_n(&op->arrived_ns, &none, at_ns, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return;
  const int64_t left = left_before(op->ordinal);
  op->alone_ns = left < 0 ? -1 : at_ns > left ? at_ns - left : 0;
}

/* The host launches ahead of the device, so when it did says nothing. The device came when its kernel began, or when
 * the first of its own data was there to be sent: in a ring, where that depends on nobody else. */
static bool tells_arrival(const struct content* op) {
  return op->record.body.op.algorithm == LS_ALGORITHM_RING && !op->by_kernels;
}

/* Readers see it once an op, as long as it lasts. */
static void await_device(struct content* op, uint64_t handle) {
  if (!tells_arrival(op) || __atomic_load_n(&op->arrived_ns, __ATOMIC_SEQ_CST) != 0 ||
      __atomic_exchange_n(&op->device_awaited, true, __ATOMIC_SEQ_CST))
    return;
  show_device(op, handle, LS_OWN_DEVICE);
  if (__atomic_load_n(&op->arrived_ns, __ATOMIC_SEQ_CST) != 0) show_device(op, handle, 0); /* meanwhile */
}

static void arrive(struct content* op, uint64_t handle) {
  if (!tells_arrival(op)) return;
  arrive_at(op, ls_collect_now());
  if (__atomic_exchange_n(&op->device_awaited, false, __ATOMIC_ACQ_REL)) show_device(op, handle, 0);
}

/* By how much the host's clock is ahead of the device's, of each communicator, for a process may have several devices.
 * The smallest difference seen: a time is told some while after it was. It gives way slowly, as clocks drift. */
static int64_t ahead[LS_TRAIL_COMMUNICATORS]; /* 0: not known */

static int64_t host_time(uint32_t communicator, uint64_t device_ns) {
  const int64_t now = ls_collect_now(), seen = now - (int64_t)device_ns;
  if (device_ns == 0) return now; /* which NCCL has not read yet */
  int64_t known = __atomic_load_n(&ahead[communicator], __ATOMIC_RELAXED);
  known = known == 0 || seen < known ? seen : known + (seen - known) / 1024;
  __atomic_store_n(&ahead[communicator], known, __ATOMIC_RELAXED);
  return (int64_t)device_ns + known;
}

/* The clock is looked at only where the caller has not: that is a good part of a callback. */
enum { kLook = 0 };

static void end_op(struct ls_trail* trail, const struct content* op, uint64_t handle, uint8_t state, int64_t now) {
  if (!retire(handle)) return;
  struct ls_record record = op->record;
  const uint64_t ordinal = op->ordinal;
  const int64_t arrived = __atomic_load_n(&op->arrived_ns, __ATOMIC_ACQUIRE), alone = op->alone_ns;
  const int64_t left = __atomic_load_n(&op->left_ns, __ATOMIC_ACQUIRE);
  const bool told = __atomic_load_n(&op->told_launched, __ATOMIC_ACQUIRE);
  const ls_handle place = __atomic_load_n(&op->place, __ATOMIC_SEQ_CST); /* as `show_started` last left it */
  free_slot(handle);
  if (arrived != 0) {
    record.time_ns = arrived;
    ls_op_set_alone(&record, alone);
  }
  if (state == LS_OP_LAUNCHED && told)
    ls_collect_count_ended(trail, &record);
  else
    ls_collect_ended(trail, &record, state, now == kLook ? ls_collect_now() : now);
  ls_trail_close(trail, place);
  if (state == LS_OP_COMPLETED) note_end(ordinal, left != 0 ? left : record.time_ns);
}

static void end_if_done(struct ls_trail* trail, const struct content* op, uint64_t handle, uint32_t progress,
                        int64_t now) {
  if ((progress & kEnqueued) != 0 && (progress & kHadWorkers) != 0 && (progress & kWorking) == 0 &&
      __atomic_load_n(&op->kernels, __ATOMIC_ACQUIRE) == 0)
    end_op(trail, op, handle, LS_OP_COMPLETED, now);
}

/* Ops that are enqueued and had no proxy yet, or not all of their kernels, which may come much later: the host runs
 * ahead of the devices. Where so many others were enqueued since, none is to be expected: few of a communicator for
 * which nothing has worked yet, as inside of a machine; of one for which something has as many as there is room for. */
enum { kAhead = 32, kFarAhead = kSlots / 4 };
static uint64_t enqueued[LS_TRAIL_COMMUNICATORS][kAhead], far_ahead[kFarAhead];
static uint32_t enqueued_count[LS_TRAIL_COMMUNICATORS], far_ahead_count;
static bool worked_for[LS_TRAIL_COMMUNICATORS];

/* The handle that was put there so many ago. */
static uint64_t take_turns(uint64_t* handles, uint32_t* count, uint32_t length, uint64_t next) {
  const uint32_t at = __atomic_fetch_add(count, 1, __ATOMIC_RELAXED) % length;
  return __atomic_exchange_n(&handles[at], next, __ATOMIC_ACQ_REL);
}

static const struct content* without_workers(uint64_t handle) {
  const struct content* op = content_of(handle, kOp);
  const uint32_t progress = op == NULL ? 0 : __atomic_load_n(&op->progress, __ATOMIC_ACQUIRE);
  const bool none = (progress & kHadWorkers) == 0;
  return op != NULL && (none || (op->by_kernels && (progress & kWorking) == 0)) ? op : NULL;
}

/* `next` takes the place of the one that was enqueued longest ago. */
static void await_workers(struct ls_trail* trail, uint32_t communicator, uint64_t next) {
  uint64_t oldest = take_turns(enqueued[communicator], &enqueued_count[communicator], kAhead, next);
  if (without_workers(oldest) == NULL) return;
  if (__atomic_load_n(&worked_for[communicator], __ATOMIC_RELAXED))
    oldest = take_turns(far_ahead, &far_ahead_count, kFarAhead, oldest);
  const struct content* op = without_workers(oldest);
  if (op != NULL) end_op(trail, op, oldest, LS_OP_LAUNCHED, kLook);
}

/* Ops that had no proxy yet keep so many places of the trail, of all communicators together: the others are for those
 * that a proxy works for. The one that was launched longest ago gives its place up, and gets another when it has one:
 * meanwhile a record says that it was launched, and what comes of it, if anything does, another one. */
enum { kLaunchedPlaces = LS_TRAIL_PLACES / 2 };
static uint64_t launched[kLaunchedPlaces];
static uint32_t launched_count;

static void share_places(struct ls_trail* trail, uint64_t next) {
  const uint64_t before = take_turns(launched, &launched_count, kLaunchedPlaces, next);
  struct content* op = content_of(before, kOp);
  if (op == NULL || (__atomic_load_n(&op->progress, __ATOMIC_ACQUIRE) & kHadWorkers) != 0) return;
  struct ls_record record = op->record;
  const ls_handle place = __atomic_load_n(&op->place, __ATOMIC_SEQ_CST);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (content_of(before, kOp) != op || !ls_trail_close(trail, place)) return; /* it is over, or works by now */
  __atomic_store_n(&op->told_launched, true, __ATOMIC_RELEASE);
  const int64_t now = ls_collect_now();
  ls_op_set_duration(&record, now - record.time_ns);
  record.time_ns = now;
  ls_trail_push(trail, &record);
}

/* In a place of its own, which `share_places` does not know of. Where the op ends meanwhile, either `end_op` sees that
 * place or we see that it ended. */
static void show_started(struct ls_trail* trail, struct content* op, uint64_t handle) {
  struct ls_record record = op->record;
  record.body.op.state = LS_OP_STARTED;
  const ls_handle before = __atomic_load_n(&op->place, __ATOMIC_RELAXED), place = ls_trail_open(trail, &record);
  if (place == 0) {
    ls_trail_set(trail, before, &record);
    return;
  }
  ls_handle expected = before;
  const bool kept =
      __atomic_compare_exchange_n(&op->place, &expected, place, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
  ls_trail_close(trail, before);
  if (!kept || content_of(handle, kOp) != op) ls_trail_close(trail, place);
}

static void stop_op(struct ls_trail* trail, struct content* op, uint64_t handle) {
  const uint32_t communicator = op->record.body.op.communicator;
  const uint32_t progress = __atomic_or_fetch(&op->progress, kEnqueued, __ATOMIC_ACQ_REL);
  if ((progress & kHadWorkers) == 0 || op->by_kernels) await_workers(trail, communicator, handle);
  end_if_done(trail, op, handle, progress, kLook);
}

/* Of versions 1 to 3: which communicator it is, the first op tells. */
static void identify(struct ls_trail* trail, uint32_t communicator, const void* descriptor) {
  struct ls_communicator* own = &trail->communicator[communicator];
  if (__atomic_load_n(&own->id, __ATOMIC_ACQUIRE) != 0) return;
  own->rank = (uint32_t)int_at(descriptor, NCCL_AT_RANK);
  __atomic_store_n(&own->id, word_at(descriptor, NCCL_AT_COMM_HASH_1), __ATOMIC_RELEASE);
}

static void start_op(int version, uint32_t communicator, void** handle, uint64_t type, const void* descriptor) {
  struct ls_trail* trail = ls_collect_trail();
  if (version < 4) identify(trail, communicator, descriptor);
  if (type == NCCL_COLL) sample();
  static uint64_t ordinals;
  const uint64_t ordinal = __atomic_add_fetch(&ordinals, 1, __ATOMIC_RELAXED); /* also of one that is not kept */
  struct slot* slot = take_slot();
  if (slot == NULL) {
    __atomic_fetch_add(&trail->no_place, 1, __ATOMIC_RELAXED);
    return;
  }
  struct content* op = &slot->now;
  op->progress = 0;
  op->ordinal = ordinal;
  op->arrived_ns = 0;
  op->alone_ns = -1;
  op->left_ns = 0;
  op->told_launched = op->device_awaited = false;
  op->by_kernels = (__atomic_load_n(&watched, __ATOMIC_RELAXED) & NCCL_KERNEL_CHANNEL) != 0;
  op->kernels =
      !op->by_kernels ? 0 : byte_at(descriptor, type == NCCL_COLL ? NCCL_AT_COLL_CHANNELS_4 : NCCL_AT_P2P_CHANNELS_4);
  op->place = ls_collect_launched(trail, &op->record, communicator, function_of(version, type, descriptor));
  if (type == NCCL_P2P)
    op->record.body.op.peer = int_at(descriptor, version >= 4 ? NCCL_AT_P2P_PEER_4 : NCCL_AT_P2P_PEER_1);
  else if (version >= 4)
    op->record.body.op.algorithm =
        algorithm_of((const char*)(uintptr_t)word_at(descriptor, NCCL_AT_COLL_ALGO_4), op->record.body.op.function);
  op->record.body.op.state = LS_OP_LAUNCHED;
  ls_op_set_alone(&op->record, -1);
  ls_trail_set(trail, op->place, &op->record);
  *handle = publish(slot, kOp, communicator);
  share_places(trail, (uint64_t)(uintptr_t)*handle);
}

/* ---- proxies ---- */

/* A slot for one more that works for the op; NULL: there is no op, or no room, which `no_room` counts. */
static struct slot* begin_work(struct ls_trail* trail, struct content* op, uint64_t parent, uint64_t* no_room) {
  struct slot* slot = op == NULL ? NULL : take_slot();
  if (slot == NULL) {
    __atomic_fetch_add(op == NULL ? &trail->no_op : no_room, 1, __ATOMIC_RELAXED);
    return NULL;
  }
  slot->now.parent = parent;
  __atomic_add_fetch(&op->progress, 1, __ATOMIC_ACQ_REL);
  if ((__atomic_fetch_or(&op->progress, kHadWorkers, __ATOMIC_ACQ_REL) & kHadWorkers) != 0) return slot;
  show_started(trail, op, parent);
  return slot;
}

static void end_work(struct ls_trail* trail, uint64_t handle, int64_t now) {
  struct content* op = content_of(handle, kOp);
  if (op != NULL) end_if_done(trail, op, handle, __atomic_sub_fetch(&op->progress, 1, __ATOMIC_ACQ_REL), now);
}

static void start_kernel(uint32_t communicator, void** handle, const void* descriptor) {
  struct ls_trail* trail = ls_collect_trail();
  __atomic_store_n(&worked_for[communicator], true, __ATOMIC_RELAXED);
  const uint64_t parent = word_at(descriptor, NCCL_AT_PARENT);
  struct content* op = content_of(parent, kOp);
  if (op != NULL && !op->by_kernels) op = NULL;
  struct slot* slot = begin_work(trail, op, parent, &trail->no_place);
  if (slot == NULL) return;
  const int64_t began = host_time(op->record.body.op.communicator, word_at(descriptor, NCCL_AT_KERNEL_TIME_4));
  /* Transfers of one kernel begin together: their launches alone have an order, and what was before them is no delay.
   */
  if (!ls_collect_is_transfer(op->record.body.op.function)) arrive_at(op, began);
  slot->now.left_ns = 0;
  *handle = publish(slot, kKernel, op->record.body.op.communicator);
}

static void stop_kernel(struct ls_trail* trail, const struct content* kernel, uint64_t handle) {
  if (!retire(handle)) return;
  const uint64_t parent = kernel->parent;
  const int64_t left = kernel->left_ns;
  free_slot(handle);
  struct content* op = content_of(parent, kOp);
  if (op == NULL) return;
  int64_t known = __atomic_load_n(&op->left_ns, __ATOMIC_ACQUIRE);
  while (left > known &&
         !__atomic_compare_exchange_n(&op->left_ns, &known, left, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  uint32_t kernels = __atomic_load_n(&op->kernels, __ATOMIC_ACQUIRE);
  while (kernels > 0 &&
         !__atomic_compare_exchange_n(&op->kernels, &kernels, kernels - 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
  }
  end_work(trail, parent, kLook);
}

static void start_proxy_op(uint32_t communicator, void** handle, const void* descriptor) {
  struct ls_trail* trail = ls_collect_trail();
  const uint64_t parent = word_at(descriptor, NCCL_AT_PARENT);
  /* A proxy may serve another process of its machine: then the parent means nothing here. */
  const bool own = int_at(descriptor, NCCL_AT_PROXY_PID) == (int32_t)trail->origin.pid;
  if (own) __atomic_store_n(&worked_for[communicator], true, __ATOMIC_RELAXED);
  struct content* op = own ? content_of(parent, kOp) : NULL;
  struct slot* slot = begin_work(trail, op, parent, &trail->no_peer);
  if (slot == NULL) return;
  const struct ls_op_body* of = &op->record.body.op;
  slot->now.waited = slot->now.first = slot->now.own = slot->now.credit = 0;
  slot->now.told_credit = false;
  slot->now.sums = (struct ls_transfer_body){
      .communicator = of->communicator,
      .number = of->number,
      .rank = of->rank,
      .peer = int_at(descriptor, NCCL_AT_PROXY_PEER),
      .channel = byte_at(descriptor, NCCL_AT_PROXY_CHANNEL),
      .direction = int_at(descriptor, NCCL_AT_PROXY_IS_SEND) != 0 ? LS_SEND : LS_RECEIVE,
  };
  *handle = publish(slot, kProxyOp, of->communicator);
}

static void stop_proxy_op(struct ls_trail* trail, const struct content* proxy, uint64_t handle) {
  if (!retire(handle)) return;
  struct ls_record record;
  memset(&record, 0, sizeof record);
  record.kind = LS_RECORD_TRANSFER;
  record.epoch = __atomic_load_n(&trail->origin.epoch, __ATOMIC_RELAXED);
  record.time_ns = ls_collect_now();
  const double tick = ns_of_tick(record.time_ns);
  const uint8_t shift = ls_delta_shift((int64_t)(tick * (double)(proxy->waited + proxy->own + proxy->credit)));
  record.delta_shift = shift;
  record.body.transfer = proxy->sums;
  record.body.transfer.waited = ls_delta((int64_t)(tick * (double)proxy->waited), shift);
  record.body.transfer.first = ls_delta((int64_t)(tick * (double)proxy->first), shift);
  record.body.transfer.own = ls_delta((int64_t)(tick * (double)proxy->own), shift);
  record.body.transfer.credit =
      proxy->told_credit ? ls_delta((int64_t)(tick * (double)proxy->credit), shift) : LS_UNKNOWN;
  const uint64_t parent = proxy->parent;
  free_slot(handle);
  if (record.body.transfer.count != 0) ls_trail_push(trail, &record);
  end_work(trail, parent, record.time_ns);
}

static void start_step(void** handle, const void* descriptor) {
  const uint64_t parent = word_at(descriptor, NCCL_AT_PARENT);
  const struct content* proxy = content_of(parent, kProxyOp);
  struct slot* slot = proxy == NULL ? NULL : take_slot();
  if (slot == NULL) return;
  slot->now.parent = parent;
  slot->now.state = 0;
  slot->now.of_step = 0;
  slot->now.since = ticks();
  *handle = publish(slot, kProxyStep, proxy->sums.communicator);
}

/* The wait that it was in has ended. */
static void account(struct content* step, struct content* proxy) {
  const uint64_t now = ticks(), took = now > step->since ? now - step->since : 0;
  step->since = now;
  switch (step->state) {
    case NCCL_SEND_GPU_WAIT: {
      struct content* op = proxy->sums.count == 0 ? content_of(proxy->parent, kOp) : NULL;
      if (op != NULL) arrive(op, proxy->parent);
      proxy->own += took;
      break;
    }
    case NCCL_RECV_GPU_WAIT:
      proxy->own += took;
      break;
    case NCCL_SEND_PEER_WAIT:
      proxy->credit += took;
      proxy->told_credit = true;
      break;
    case NCCL_SEND_WAIT:
    case NCCL_RECV_WAIT:
    case NCCL_RECV_FLUSH_WAIT:
      proxy->waited += took;
      step->of_step += took;
      break;
    default: /* before its first state */
      break;
  }
}

static void change_step(struct content* step, int state, uint64_t bytes) {
  struct content* proxy = content_of(step->parent, kProxyOp);
  if (proxy == NULL) return;
  account(step, proxy);
  step->state = state;
  if (state == NCCL_SEND_GPU_WAIT && proxy->sums.count == 0) {
    struct content* op = content_of(proxy->parent, kOp);
    if (op != NULL) await_device(op, proxy->parent);
  }
  if (state == NCCL_SEND_WAIT || state == NCCL_RECV_FLUSH_WAIT) proxy->sums.bytes += bytes;
}

static void stop_step(struct content* step, uint64_t handle) {
  struct content* proxy = content_of(step->parent, kProxyOp);
  if (proxy != NULL) {
    account(step, proxy);
    if (proxy->sums.count++ == 0) proxy->first = step->of_step;
  }
  give_back(handle);
}

/* ---- what NCCL calls ---- */

static int start_event(int version, void* context, void** handle, const void* descriptor) {
  *handle = NULL; /* of which NCCL tells no more */
  const uint64_t communicator = (uint64_t)(uintptr_t)context - 1;
  if (ls_collect_trail() == NULL || communicator >= LS_TRAIL_COMMUNICATORS) return NCCL_SUCCESS;
  const uint64_t type = version >= 5 ? word_at(descriptor, NCCL_AT_TYPE) : byte_at(descriptor, NCCL_AT_TYPE);
  if (type == NCCL_GROUP) *handle = (void*)(uintptr_t)kGroupHandle;
  if (type == NCCL_COLL || type == NCCL_P2P) start_op(version, (uint32_t)communicator, handle, type, descriptor);
  if (type == NCCL_PROXY_OP) start_proxy_op((uint32_t)communicator, handle, descriptor);
  if (type == NCCL_PROXY_STEP) start_step(handle, descriptor);
  if (type == NCCL_KERNEL_CHANNEL && version >= 4) start_kernel((uint32_t)communicator, handle, descriptor);
  return NCCL_SUCCESS;
}

static int stop_event(void* event) {
  const uint64_t handle = (uint64_t)(uintptr_t)event;
  struct ls_trail* trail = ls_collect_trail();
  if (handle == 0 || handle == kGroupHandle || trail == NULL) return NCCL_SUCCESS;
  struct content* found;
  if ((found = content_of(handle, kOp)) != NULL)
    stop_op(trail, found, handle);
  else if ((found = content_of(handle, kProxyOp)) != NULL)
    stop_proxy_op(trail, found, handle);
  else if ((found = content_of(handle, kProxyStep)) != NULL)
    stop_step(found, handle);
  else if ((found = content_of(handle, kKernel)) != NULL)
    stop_kernel(trail, found, handle);
  else
    __atomic_fetch_add(&trail->no_op, 1, __ATOMIC_RELAXED);
  return NCCL_SUCCESS;
}

static int record_state(int version, void* event, int state, const void* arguments) {
  struct content* step = content_of((uint64_t)(uintptr_t)event, kProxyStep);
  /* The size is where versions 1 to 3 have another one. */
  if (step != NULL) {
    change_step(step, state, version >= 4 && arguments != NULL ? word_at(arguments, 0) : 0);
    return NCCL_SUCCESS;
  }
  struct content* kernel = content_of((uint64_t)(uintptr_t)event, kKernel);
  const struct content* op = kernel == NULL ? NULL : content_of(kernel->parent, kOp);
  if (op != NULL && state == NCCL_KERNEL_CHANNEL_STOP && arguments != NULL)
    kernel->left_ns = host_time(op->record.body.op.communicator, word_at(arguments, 0));
  return NCCL_SUCCESS;
}

/* NCCL has stopped the communicator's proxies, so what is still under way was aborted; or they are another one's, from
 * which it was split, and what they still have to tell comes too late. How it ended nobody knows. The communicator's
 * entry in the trail stays: what comes late finds nothing. */
static int finalize(void* context) {
  struct ls_trail* trail = ls_collect_trail();
  const uint64_t communicator = (uint64_t)(uintptr_t)context - 1;
  if (trail == NULL || communicator >= LS_TRAIL_COMMUNICATORS) return NCCL_SUCCESS;
  for (size_t i = 0; i < kSlots; ++i) {
    const uint64_t handle = handle_in(&ls_nccl_slots[i], (uint32_t)communicator);
    const struct content* op = content_of(handle, kOp);
    if (op != NULL)
      end_op(trail, op, handle, LS_OP_LAUNCHED, kLook);
    else if (handle != 0)
      give_back(handle);
  }
  return NCCL_SUCCESS;
}

static int init_1(void** context, int* mask) { return begin(1, context, mask, 0, NULL, 0, 0); }
static int init_4(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank,
                  void* log) {
  (void)nodes, (void)log;
  return begin(4, context, mask, hash, name, ranks, rank);
}
static int init_5(void** context, uint64_t id, int* mask, const char* name, int nodes, int ranks, int rank, void* log) {
  (void)nodes, (void)log;
  return begin(5, context, mask, id, name, ranks, rank);
}

#define PROFILER(version, init)                                                                        \
  static int start_##version(void* context, void** handle, const void* descriptor) {                   \
    return start_event(version, context, handle, descriptor);                                          \
  }                                                                                                    \
  static int record_##version(void* event, int state, const void* arguments) {                         \
    return record_state(version, event, state, arguments);                                             \
  }                                                                                                    \
  EXPORT extern const struct nccl_profiler ncclProfiler_v##version;                                    \
  const struct nccl_profiler ncclProfiler_v##version = {"lockstep", (void*)init,      start_##version, \
                                                        stop_event, record_##version, finalize};

PROFILER(1, init_1)
PROFILER(2, init_1)
PROFILER(3, init_1)
PROFILER(4, init_4)
PROFILER(5, init_5)
PROFILER(6, init_5)
