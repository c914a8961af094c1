/* liblockstep-gloo.so: preloaded, it stands before libgloo's own functions and keeps the trail of what passes: each
 * collective and each send and receive, and how long each peer's messages held the rank up. Whatever libgloo does, it
 * still does, exceptions included.
 *
 * What it takes for granted of gloo's objects is little, and checked: a rendezvous::Context begins with its vtable, its
 * rank and its size; the options of an op begin with a shared_ptr to it, or in later versions to what follows its
 * vtable; a buffer of the TCP transport holds a pointer to its own context behind vtable, address and size. Contexts
 * whose connecting it did not see are counted, nothing more.
 *
 * The names below are those of the C++ functions as the Itanium ABI mangles them: they are the interface.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "lockstep/collect/collector.h"

#define EXPORT __attribute__((visibility("default")))
#define MILLISECONDS "NSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"

/* ---- libgloo's own functions ---- */

#define ALL_REDUCE "_ZN4gloo9allreduceERKNS_16AllreduceOptionsE"
#define ALL_GATHER "_ZN4gloo9allgatherERNS_16AllgatherOptionsE"
#define ALL_GATHER_V "_ZN4gloo10allgathervERNS_17AllgathervOptionsE"
#define BROADCAST "_ZN4gloo9broadcastERNS_16BroadcastOptionsE"
#define REDUCE "_ZN4gloo6reduceERNS_13ReduceOptionsE"
#define GATHER "_ZN4gloo6gatherERNS_13GatherOptionsE"
#define GATHER_V "_ZN4gloo7gathervERNS_14GathervOptionsE"
#define SCATTER "_ZN4gloo7scatterERNS_14ScatterOptionsE"
#define ALL_TO_ALL "_ZN4gloo8alltoallERNS_15AlltoallOptionsE"
#define ALL_TO_ALL_V "_ZN4gloo9alltoallvERNS_16AlltoallvOptionsE"
#define BARRIER "_ZN4gloo7barrierERNS_14BarrierOptionsE"
#define CONNECT "_ZN4gloo10rendezvous7Context15connectFullMeshERNS0_5StoreERSt10shared_ptrINS_9transport6DeviceEE"
/* With the store as a shared_ptr, which is passed by its address, too: torch 2.7 and later. */
#define CONNECT_SHARED                                                               \
  "_ZN4gloo10rendezvous7Context15connectFullMeshESt10shared_ptrINS0_5StoreEERS2_INS" \
  "_9transport6DeviceEE"
#define CREATE_BUFFER "_ZN4gloo7Context19createUnboundBufferEPvm"
#define EXTRACT "_ZN4gloo10rendezvous7Context14extractAddressERSt6vectorIcSaIcEEi"
#define RANK_BYTES "_ZNK4gloo9transport3tcp4Rank5bytesEv"
#define RANK_FROM_BYTES "_ZN4gloo9transport3tcp4RankC1ERKSt6vectorIcSaIcEE"
#define ADDRESS "_ZNK4gloo9transport3tcp7Address5bytesEv"
#define SEND "_ZN4gloo9transport3tcp13UnboundBuffer4sendEimmm"
#define RECEIVE "_ZN4gloo9transport3tcp13UnboundBuffer4recvEimmm"
#define RECEIVE_ANY "_ZN4gloo9transport3tcp13UnboundBuffer4recvESt6vectorIiSaIiEEmmm"
#define WAIT_SEND "_ZN4gloo9transport3tcp13UnboundBuffer8waitSendEPi" MILLISECONDS
#define WAIT_RECEIVE "_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPi" MILLISECONDS
#define DELETE_BUFFER "_ZN4gloo9transport3tcp13UnboundBufferD0Ev"

static const void* library_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

/* In a library that is loaded already, or in those that it was linked with; not our own. */
static void* find_in(const char* file, const char* name) {
  void* library = dlopen(file, RTLD_NOLOAD | RTLD_LAZY);
  void* found = library == NULL ? NULL : dlsym(library, name);
  if (library != NULL) dlclose(library); /* it stays as loaded as it was */
  return found != NULL && library_of(found) != library_of((const void*)find_in) ? found : NULL;
}

/* Looked up where the caller comes from, which may have a gloo of its own, and else in the libraries that have torch's:
 * the next one after ours is no help, since Python loads torch and gloo where nobody else sees them. There is nothing
 * to do without; it can't happen to a caller that itself comes from libgloo. */
static void* find(const char* name, const void* caller) {
  Dl_info info;
  void* found = dladdr(caller, &info) != 0 ? find_in(info.dli_fname, name) : NULL;
  static const char* const libraries[] = {"libgloo.so.0", "libtorch_cpu.so"};
  for (size_t i = 0; found == NULL && i < sizeof libraries / sizeof *libraries; ++i)
    found = find_in(libraries[i], name);
  if (found != NULL) return found;
  fprintf(stderr, "lockstep: %s was called, but no library has it\n", name);
  abort();
}

/* What was found for calls from one place: a process may have several gloos, and each caller means its own. Written
 * once. */
struct known {
  const void* caller; /* NULL: not written yet */
  void* function;
};
enum {
  LS_KNOWN = 64
}; /* places that call one function; libgloo itself has a dozen. From others it is looked up each time */

static void* own_of(struct known* known, const char* name, const void* caller) {
  for (size_t i = 0; i < LS_KNOWN; ++i)
    if (__atomic_load_n(&known[i].caller, __ATOMIC_ACQUIRE) == caller)
      return __atomic_load_n(&known[i].function, __ATOMIC_RELAXED);
  void* found = find(name, caller);
  for (size_t i = 0; i < LS_KNOWN; ++i) {
    void* none = NULL;
    if (!__atomic_compare_exchange_n(&known[i].function, &none, found, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
      continue;
    __atomic_store_n(&known[i].caller, caller, __ATOMIC_RELEASE);
    break;
  }
  return found;
}

/* Evaluates to libgloo's function `name`, as the type of ours. */
#define ORIGINAL(ours, name)                                               \
  ({                                                                       \
    static struct known known[LS_KNOWN];                                   \
    (__typeof__(&(ours)))own_of(known, name, __builtin_return_address(0)); \
  })

static bool is_python(void) {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return false;
  path[length] = '\0';
  return strncmp(strrchr(path, '/') + 1, "python", 6) == 0;
}

/* Ours is for the process that trains: what it starts is another, and would not expect it. `early`: no other thread is
 * there yet. Where others are, the variable stays, if empty: to replace a value harms nobody who reads the environment
 * meanwhile, to take a variable out moves all that come behind it. */
static void leave_environment(bool early) {
  const char* preloaded = getenv("LD_PRELOAD");
  char rest[4096] = "", copy[4096];
  if (preloaded == NULL || strlen(preloaded) >= sizeof copy) return;
  strcpy(copy, preloaded);
  char* more = NULL;
  for (const char* one = strtok_r(copy, ": ", &more); one != NULL; one = strtok_r(NULL, ": ", &more)) {
    if (strstr(one, "liblockstep-gloo.so") != NULL) continue;
    if (*rest != '\0') strcat(rest, ":");
    strcat(rest, one);
  }
  if (*rest == '\0' && early)
    unsetenv("LD_PRELOAD");
  else if (strcmp(rest, preloaded) != 0)
    setenv("LD_PRELOAD", rest, 1);
}

/* As soon as it is known to be that process. Launchers are of Python, too, and may have a RANK, of their node: that of
 * a process on its node only those that train have, and Lockstep's zygote becomes them. A shell script may lead to one.
 * Whoever else trains is known by its first communicator. */
__attribute__((constructor)) static void leave_environment_early(void) {
  const bool trains = getenv("LOCAL_RANK") != NULL || getenv("LOCKSTEP_ZYGOTE_PRELOAD") != NULL;
  if (trains && is_python()) leave_environment(true);
}

/* ---- the op that a thread is in ---- */

enum { kPeers = 32, kNobody = -1, kSeveral = -2 };

struct sums { /* of the messages to or from one peer */
  int peer;
  uint8_t direction;
  uint32_t count, turn;
  uint64_t bytes;
  int64_t waited, first;
};

struct op {
  struct ls_trail* trail; /* NULL: nothing is told of it, nor of its messages */
  ls_handle handle;
  struct ls_record record;
  struct op* outer;
  bool returned;
  int sender, receiver; /* whom it receives from, and sends to; kNobody yet, or kSeveral */
  uint32_t size;        /* of its communicator */
  int peers;
  struct sums sums[kPeers];
};

static _Thread_local struct op* current;

/* Of an op that has more peers than find room those are told whose turn comes first: others by each op, so that none
 * is never told of, whichever of the communicator's ops it is in. Steps of the golden ratio meet no rhythm. */
static uint32_t turn_of(const struct op* op, int peer) {
  const uint32_t fraction = op->record.body.op.number * 2654435769u;
  const uint32_t first = (uint32_t)((uint64_t)fraction * op->size >> 32);
  return op->size == 0 ? 0 : ((uint32_t)peer + op->size - first) % op->size;
}

static struct sums* last_in_turn(struct op* op) {
  struct sums* last = op->sums;
  for (int i = 1; i < op->peers; ++i)
    if (op->sums[i].turn > last->turn) last = &op->sums[i];
  return last;
}

/* NULL: there is no room. Who once found none never does, for turns of those that are told only become earlier. */
static struct sums* sums_of(struct op* op, int peer, uint8_t direction) {
  for (int i = 0; i < op->peers; ++i)
    if (op->sums[i].peer == peer && op->sums[i].direction == direction) return &op->sums[i];
  const uint32_t turn = turn_of(op, peer);
  struct sums* sums;
  if (op->peers < kPeers) {
    sums = &op->sums[op->peers++];
  } else {
    sums = last_in_turn(op);
    const bool takes_its_place = turn < sums->turn;
    __atomic_fetch_add(&op->trail->no_peer, 1 + (takes_its_place ? sums->count : 0), __ATOMIC_RELAXED);
    if (!takes_its_place) return NULL;
  }
  memset(sums, 0, sizeof *sums);
  sums->peer = peer;
  sums->direction = direction;
  sums->turn = turn;
  return sums;
}

static void push_sums(const struct op* op) {
  const struct ls_op_body* of = &op->record.body.op;
  for (int i = 0; i < op->peers; ++i) {
    const struct sums* sums = &op->sums[i];
    struct ls_record record;
    memset(&record, 0, sizeof record);
    record.kind = LS_RECORD_TRANSFER;
    record.epoch = op->record.epoch;
    record.time_ns = op->record.time_ns;
    record.delta_shift = ls_delta_shift(sums->waited);
    record.body.transfer = (struct ls_transfer_body){
        .bytes = sums->bytes,
        .communicator = of->communicator,
        .number = of->number,
        .rank = of->rank,
        .peer = sums->peer,
        .count = sums->count,
        .waited = ls_delta(sums->waited, record.delta_shift),
        .first = ls_delta(sums->first, record.delta_shift),
        .credit = LS_UNKNOWN,
        .direction = sums->direction,
    };
    ls_trail_push(op->trail, &record);
  }
}

/* Also on the way of an exception. Where nothing was sent, for there are no elements or no other members, nobody met:
 * there is nothing to tell, and the rank goes on being by itself. */
static void end_op(struct op* op) {
  current = op->outer;
  if (op->trail == NULL) return;
  if (op->record.body.op.tag != LS_NO_TAG) {
    ls_collect_ended(op->trail, &op->record, op->returned ? LS_OP_COMPLETED : LS_OP_FAILED, ls_collect_now());
    push_sums(op);
  } else {
    __atomic_fetch_add(&op->trail->communicator[op->record.body.op.communicator].ended, 1, __ATOMIC_RELAXED);
  }
  ls_trail_close(op->trail, op->handle);
}

/* Of a gloo::Context; below 0: its connecting was not seen. In later versions it has no vtable of its own, and so lies
 * behind that of the rendezvous::Context whose part it is. */
static int communicator_of(struct ls_trail* trail, uint64_t context) {
  const int communicator = ls_trail_find_communicator(trail, context);
  return communicator >= 0 ? communicator : ls_trail_find_communicator(trail, context - sizeof(void*));
}

/* `options` is of any op: a shared_ptr to the gloo::Context comes first. */
static void run(uint8_t function, void (*original)(void*), void* options) {
  struct op op __attribute__((cleanup(end_op)));
  op.trail = ls_collect_trail();
  op.outer = current;
  if (op.trail != NULL) {
    uint64_t context;
    memcpy(&context, options, sizeof context);
    const int communicator = communicator_of(op.trail, context);
    if (communicator < 0) {
      __atomic_fetch_add(&op.trail->no_communicator, 1, __ATOMIC_RELAXED);
      op.trail = NULL;
    } else {
      op.returned = false;
      op.sender = op.receiver = kNobody;
      op.peers = 0;
      op.size = op.trail->communicator[communicator].size;
      op.handle = ls_collect_launched(op.trail, &op.record, (uint32_t)communicator, function);
    }
  }
  current = &op;
  original(options);
  op.returned = true;
}

#define COLLECTIVE(ours, name, function)         \
  EXPORT void ours(void* options) __asm__(name); \
  void ours(void* options) { run(function, ORIGINAL(ours, name), options); }

COLLECTIVE(gloo_all_reduce, ALL_REDUCE, LS_ALL_REDUCE)
COLLECTIVE(gloo_all_gather, ALL_GATHER, LS_ALL_GATHER)
COLLECTIVE(gloo_all_gather_v, ALL_GATHER_V, LS_ALL_GATHER)
COLLECTIVE(gloo_broadcast, BROADCAST, LS_BROADCAST)
COLLECTIVE(gloo_reduce, REDUCE, LS_REDUCE)
COLLECTIVE(gloo_gather, GATHER, LS_GATHER)
COLLECTIVE(gloo_gather_v, GATHER_V, LS_GATHER)
COLLECTIVE(gloo_scatter, SCATTER, LS_SCATTER)
COLLECTIVE(gloo_all_to_all, ALL_TO_ALL, LS_ALL_TO_ALL)
COLLECTIVE(gloo_all_to_all_v, ALL_TO_ALL_V, LS_ALL_TO_ALL)
COLLECTIVE(gloo_barrier, BARRIER, LS_BARRIER)

/* ---- sends and receives outside of collectives ---- */

/* What is under way of them, by buffer: an entry of 0 is free. Handles say the rest. */
static struct {
  uint64_t buffer;
  ls_handle handle;
} transfers[LS_TRAIL_PLACES];
static uint32_t transfers_under_way;

/* The transport's context of each communicator, as its buffers hold it. One that is gone leaves its address to the
 * next: the newest has it. */
static uint64_t transport[LS_TRAIL_COMMUNICATORS];

static uint64_t word_at(const void* object, size_t offset) {
  uint64_t word;
  memcpy(&word, (const char*)object + offset, sizeof word);
  return word;
}

enum { kBufferSize = 16, kBufferContext = 24 };

static void begin_transfer(const void* buffer, uint8_t function, int peer, uint64_t tag, uint64_t bytes) {
  struct ls_trail* trail = ls_collect_trail();
  if (trail == NULL) return;
  const uint64_t of = word_at(buffer, kBufferContext);
  uint32_t communicator = LS_TRAIL_COMMUNICATORS;
  for (uint32_t i = LS_TRAIL_COMMUNICATORS; i-- > 0 && communicator == LS_TRAIL_COMMUNICATORS;)
    if (__atomic_load_n(&transport[i], __ATOMIC_RELAXED) == of) communicator = i;
  uint32_t entry = 0;
  uint64_t none = 0;
  while (entry < LS_TRAIL_PLACES &&
         !__atomic_compare_exchange_n(&transfers[entry].buffer, &none, (uint64_t)(uintptr_t)buffer, false,
                                      __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
    none = 0;
    ++entry;
  }
  if (communicator == LS_TRAIL_COMMUNICATORS || entry == LS_TRAIL_PLACES) {
    __atomic_fetch_add(communicator == LS_TRAIL_COMMUNICATORS ? &trail->no_communicator : &trail->no_place, 1,
                       __ATOMIC_RELAXED);
    if (entry < LS_TRAIL_PLACES) __atomic_store_n(&transfers[entry].buffer, 0, __ATOMIC_RELEASE);
    return;
  }
  struct ls_record record;
  const ls_handle handle = ls_collect_launched(trail, &record, communicator, function);
  record.body.op.peer = record.body.op.waits_for = peer;
  record.body.op.awaits = function;
  record.body.op.tag = (uint32_t)tag;
  record.body.op.bytes = bytes;
  ls_trail_set(trail, handle, &record);
  transfers[entry].handle = handle;
  __atomic_fetch_add(&transfers_under_way, 1, __ATOMIC_RELEASE);
}

/* The transfers of a buffer that go in one direction have ended: `peer` is known at last. Those of a buffer that is
 * being deleted may go in any (LS_OTHER): nobody waited for them (since -1), nobody knows how they ended, and only the
 * launch is known. */
static void end_transfers(const void* buffer, uint8_t function, int peer, uint8_t state, int64_t since, int64_t now) {
  struct ls_trail* trail = ls_collect_trail();
  if (trail == NULL) return;
  for (uint32_t entry = 0; entry < LS_TRAIL_PLACES; ++entry) {
    if (__atomic_load_n(&transfers[entry].buffer, __ATOMIC_ACQUIRE) != (uint64_t)(uintptr_t)buffer) continue;
    struct ls_record record;
    const ls_handle handle = transfers[entry].handle;
    const bool there = ls_trail_get(trail, handle, &record);
    if (there && function != LS_OTHER && record.body.op.function != function) continue;
    __atomic_store_n(&transfers[entry].buffer, 0, __ATOMIC_RELEASE);
    __atomic_fetch_sub(&transfers_under_way, 1, __ATOMIC_RELAXED);
    if (!there) continue;
    if (peer >= 0) record.body.op.peer = peer;
    ls_op_set_alone(&record, since < 0 ? -1 : now - since);
    ls_collect_ended(trail, &record, state, now);
    ls_trail_close(trail, handle);
    if (function != LS_OTHER) return; /* one wait, one transfer */
  }
}

/* ---- messages ---- */

/* A collective's slots hold its kind in the highest byte and its tag above the lowest three. */
static void learn_tag(struct op* op, uint64_t slot) {
  struct ls_op_body* body = &op->record.body.op;
  if (body->tag != LS_NO_TAG) return;
  body->tag = (uint32_t)(slot >> 24);
  uint32_t* tags = &op->trail->communicator[body->communicator].tags;
  if (body->tag >= __atomic_load_n(tags, __ATOMIC_RELAXED)) __atomic_store_n(tags, body->tag + 1, __ATOMIC_RELAXED);
}

static void learn_peer(int* known, int peer) { *known = *known == kNobody || *known == peer ? peer : kSeveral; }

static uint64_t bytes_of(const void* buffer, uint64_t bytes) {
  return bytes == UINT64_MAX ? word_at(buffer, kBufferSize) : bytes;
}

/* What a rank brings to a collective is the whole buffer that it first sends of; who only hears a broadcast brings as
 * much room for it. */
static void learn_what_it_brings(struct op* op, uint8_t direction, const void* buffer) {
  struct ls_op_body* body = &op->record.body.op;
  const bool all = body->function == LS_ALL_REDUCE || body->function == LS_REDUCE;
  if (body->peer != LS_NO_PEER || !((all && direction == LS_SEND) || body->function == LS_BROADCAST)) return;
  const uint64_t bytes = word_at(buffer, kBufferSize);
  if (bytes <= INT32_MAX) body->peer = (int32_t)bytes;
}

/* A message is sent to the peer, or waited for from it: of the op that the thread is in, or by itself. */
static void note_message(uint8_t direction, const void* buffer, int peer, uint64_t slot, uint64_t wanted_bytes) {
  struct op* op = current;
  if (op != NULL && op->trail == NULL) return;
  const uint64_t bytes = bytes_of(buffer, wanted_bytes);
  if (op == NULL) {
    begin_transfer(buffer, direction, peer, slot, bytes);
    return;
  }
  learn_tag(op, slot);
  learn_what_it_brings(op, direction, buffer);
  learn_peer(direction == LS_SEND ? &op->receiver : &op->sender, peer);
  struct sums* sums = sums_of(op, peer, direction);
  if (sums != NULL) sums->bytes += bytes;
  if (direction == LS_SEND) op->record.body.op.bytes += bytes;
}

EXPORT void gloo_send(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) __asm__(SEND);
void gloo_send(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  note_message(LS_SEND, buffer, peer, slot, bytes);
  ORIGINAL(gloo_send, SEND)(buffer, peer, slot, offset, bytes);
}

EXPORT void gloo_receive(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) __asm__(RECEIVE);
void gloo_receive(void* buffer, int peer, uint64_t slot, size_t offset, size_t bytes) {
  note_message(LS_RECEIVE, buffer, peer, slot, bytes);
  ORIGINAL(gloo_receive, RECEIVE)(buffer, peer, slot, offset, bytes);
}

EXPORT void gloo_receive_any(void* buffer, void* peers, uint64_t slot, size_t offset,
                             size_t bytes) __asm__(RECEIVE_ANY);
void gloo_receive_any(void* buffer, void* peers, uint64_t slot, size_t offset, size_t bytes) {
  if (current == NULL)
    begin_transfer(buffer, LS_RECEIVE, LS_NO_PEER, slot, bytes_of(buffer, bytes));
  else if (current->trail != NULL)
    learn_tag(current, slot);
  ORIGINAL(gloo_receive_any, RECEIVE_ANY)(buffer, peers, slot, offset, bytes);
}

/* Shows readers what the op waits for. */
static void show_wait(struct op* op, uint8_t direction, int peer) {
  op->record.body.op.awaits = direction;
  op->record.body.op.waits_for = peer < 0 ? LS_NO_PEER : peer;
  ls_trail_set(op->trail, op->handle, &op->record);
}

static void add_wait(struct op* op, uint8_t direction, int peer, int64_t waited) {
  ++op->record.body.op.messages;
  struct sums* sums = sums_of(op, peer, direction);
  if (sums == NULL) return;
  if (sums->count++ == 0) sums->first = waited;
  sums->waited += waited;
}

typedef bool (*wait_function)(void* buffer, int* peer, int64_t timeout_ms);

struct wait { /* outside of collectives */
  void* buffer;
  uint8_t direction;
  int* peer;
  int64_t begin;
  bool there;
};

/* Also on the way of an exception, which is how gloo says that the time is up. */
static void end_wait(const struct wait* wait) {
  struct ls_trail* trail = ls_collect_trail();
  const int64_t now = ls_collect_now();
  if (trail != NULL) ls_collect_waited(trail, wait->begin, now); /* a sender, too: it goes when its receiver is ready */
  end_transfers(wait->buffer, wait->direction, wait->there ? *wait->peer : LS_NO_PEER,
                wait->there ? LS_OP_COMPLETED : LS_OP_FAILED, wait->begin, now);
}

static bool wait_for(uint8_t direction, wait_function original, void* buffer, int* peer, int64_t timeout_ms) {
  int own = LS_NO_PEER;
  if (peer == NULL) peer = &own; /* gloo tells whose message it was only where it is asked */
  struct op* op = current;
  const int64_t begin = ls_collect_now();
  if (op == NULL || op->trail == NULL) {
    struct wait wait __attribute__((cleanup(end_wait))) = {buffer, direction, peer, begin, false};
    wait.there = original(buffer, peer, timeout_ms);
    return wait.there;
  }
  show_wait(op, direction, direction == LS_SEND ? op->receiver : op->sender);
  const bool there = original(buffer, peer, timeout_ms);
  if (there) add_wait(op, direction, *peer, ls_collect_now() - begin);
  return there;
}

EXPORT bool gloo_wait_send(void* buffer, int* peer, int64_t timeout_ms) __asm__(WAIT_SEND);
bool gloo_wait_send(void* buffer, int* peer, int64_t timeout_ms) {
  return wait_for(LS_SEND, ORIGINAL(gloo_wait_send, WAIT_SEND), buffer, peer, timeout_ms);
}
EXPORT bool gloo_wait_receive(void* buffer, int* peer, int64_t timeout_ms) __asm__(WAIT_RECEIVE);
bool gloo_wait_receive(void* buffer, int* peer, int64_t timeout_ms) {
  return wait_for(LS_RECEIVE, ORIGINAL(gloo_wait_receive, WAIT_RECEIVE), buffer, peer, timeout_ms);
}

EXPORT void gloo_delete_buffer(void* buffer) __asm__(DELETE_BUFFER);
void gloo_delete_buffer(void* buffer) {
  if (__atomic_load_n(&transfers_under_way, __ATOMIC_ACQUIRE) != 0)
    end_transfers(buffer, LS_OTHER, LS_NO_PEER, LS_OP_LAUNCHED, -1, ls_collect_now());
  ORIGINAL(gloo_delete_buffer, DELETE_BUFFER)(buffer);
}

/* ---- communicators ---- */

/* The mesh that a thread connects. Rank 0 tells all others where it can be reached, for each of them: no two
 * communicators have the same such text, and its hash is their identity. Rank 0 hashes what it writes: addresses, or in
 * later versions of gloo all of them at once; the others hash what they read of rank 0, the first of all. */
static _Thread_local struct {
  bool active, at_once, heard;
  uint64_t own, of_rank_0; /* hashes */
} mesh;

static const uint64_t kHashBegin = 0xcbf29ce484222325u; /* FNV-1a */

/* `vector`, a std::vector<char>, begins with its begin and its end. */
static uint64_t hash_vector(uint64_t hash, void* const* vector) {
  for (const unsigned char *byte = vector[0], *end = vector[1]; byte < end; ++byte)
    hash = (hash ^ *byte) * 0x100000001b3u;
  return hash;
}

EXPORT void* gloo_address(void** result, const void* address) __asm__(ADDRESS);
void* gloo_address(void** result, const void* address) {
  void* returned = ORIGINAL(gloo_address, ADDRESS)(result, address);
  if (mesh.active && !mesh.at_once) mesh.own = hash_vector(mesh.own, result);
  return returned;
}
EXPORT void* gloo_rank_bytes(void** result, const void* rank) __asm__(RANK_BYTES);
void* gloo_rank_bytes(void** result, const void* rank) {
  void* returned = ORIGINAL(gloo_rank_bytes, RANK_BYTES)(result, rank);
  mesh.at_once = true;
  mesh.own = hash_vector(kHashBegin, result);
  return returned;
}

static void hear(void* const* text) {
  if (!mesh.active || mesh.heard) return;
  mesh.heard = true;
  mesh.of_rank_0 = hash_vector(kHashBegin, text);
}
EXPORT void* gloo_extract(void** result, void* context, void** all, int rank) __asm__(EXTRACT);
void* gloo_extract(void** result, void* context, void** all, int rank) {
  hear(all);
  return ORIGINAL(gloo_extract, EXTRACT)(result, context, all, rank);
}
EXPORT void gloo_rank_from_bytes(void* rank, void** all) __asm__(RANK_FROM_BYTES);
void gloo_rank_from_bytes(void* rank, void** all) {
  hear(all);
  ORIGINAL(gloo_rank_from_bytes, RANK_FROM_BYTES)(rank, all);
}

/* Threads that connect a mesh. For each rank that one connects to gloo waits until its event loop has come round, which
 * takes up to 10 ms where nothing happens: with shorter rounds 4 ranks meet in half the time, and so a restart is
 * shorter. */
static uint32_t connecting;
enum { kLoopMs = 10, kLoopEvents = 64, kShortLoopMs = 1 }; /* what its loop asks for, and nobody else */

EXPORT int epoll_wait(int epoll, struct epoll_event* events, int most, int timeout_ms) {
  if (timeout_ms == kLoopMs && most == kLoopEvents && __atomic_load_n(&connecting, __ATOMIC_RELAXED) != 0)
    timeout_ms = kShortLoopMs;
  return epoll_pwait(epoll, events, most, timeout_ms, NULL);
}

static void leave_mesh(const bool* connected) {
  (void)connected;
  __atomic_fetch_sub(&connecting, 1, __ATOMIC_RELAXED);
  mesh.active = false;
}

typedef void (*connect_function)(void* context, void* store, void* device);

static void connect_mesh(connect_function original, void* context, void* store, void* device) {
  int32_t place[2]; /* rank and size, behind the vtable */
  memcpy(place, (const char*)context + sizeof(void*), sizeof place);
  static int left;
  if (__atomic_exchange_n(&left, 1, __ATOMIC_RELAXED) == 0) leave_environment(false);
  struct ls_trail* trail = ls_collect_begin("gloo", place[0], place[1]);
  bool connected __attribute__((cleanup(leave_mesh))) = false;
  __atomic_fetch_add(&connecting, 1, __ATOMIC_RELAXED);
  mesh.active = trail != NULL;
  mesh.at_once = mesh.heard = false;
  mesh.own = mesh.of_rank_0 = kHashBegin;
  original(context, store, device);
  connected = true;
  if (trail == NULL) return;
  const int index = ls_collect_communicator(trail, (uint64_t)(uintptr_t)context);
  if (index < 0) return;
  struct ls_communicator* communicator = &trail->communicator[index];
  communicator->rank = (uint32_t)place[0];
  communicator->size = (uint32_t)place[1];
  const uint64_t id = place[0] == 0 ? mesh.own : mesh.of_rank_0;
  __atomic_store_n(&communicator->id, id == 0 ? 1 : id, __ATOMIC_RELEASE);
}

EXPORT void gloo_connect(void* context, void* store, void* device) __asm__(CONNECT);
void gloo_connect(void* context, void* store, void* device) {
  connect_mesh(ORIGINAL(gloo_connect, CONNECT), context, store, device);
}
EXPORT void gloo_connect_shared(void* context, void* store, void* device) __asm__(CONNECT_SHARED);
void gloo_connect_shared(void* context, void* store, void* device) {
  connect_mesh(ORIGINAL(gloo_connect_shared, CONNECT_SHARED), context, store, device);
}

/* Of a communicator that found no room in the trail (-1), no other may be taken for it that had this address before. */
static void know_transport(int communicator, uint64_t context) {
  if (communicator >= 0) __atomic_store_n(&transport[communicator], context, __ATOMIC_RELAXED);
  for (uint32_t i = 0; communicator < 0 && i < LS_TRAIL_COMMUNICATORS; ++i)
    if (__atomic_load_n(&transport[i], __ATOMIC_RELAXED) == context)
      __atomic_store_n(&transport[i], 0, __ATOMIC_RELAXED);
}

/* Returns, as C++ has it, where the caller wants the unique_ptr; learns which transport's context belongs to `context`.
 */
EXPORT void* gloo_create_buffer(void** result, void* context, void* memory, size_t bytes) __asm__(CREATE_BUFFER);
void* gloo_create_buffer(void** result, void* context, void* memory, size_t bytes) {
  void* returned = ORIGINAL(gloo_create_buffer, CREATE_BUFFER)(result, context, memory, bytes);
  struct ls_trail* trail = current == NULL ? ls_collect_trail() : NULL;
  if (trail == NULL || *result == NULL) return returned;
  const int communicator = communicator_of(trail, (uint64_t)(uintptr_t)context);
  know_transport(communicator, word_at(*result, kBufferContext));
  return returned;
}
