#define _GNU_SOURCE
#include "lockstep/collect/collector.h"

#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "lockstep/record/clock.h"
#include "lockstep/record/own_trail.h"

/* Whether somebody is slow is told of four steps at the least, and of very large jobs one has thousands of records. */
enum { kCells = 16384 };

static struct ls_own_trail trail_of_process;

struct ls_trail* ls_collect_trail(void) { return ls_own_trail_made(&trail_of_process); }

/* ---- other libraries of the process, in which it may wait ---- */

static int add_library(struct dl_phdr_info* info, size_t bytes, void* libraries) {
  (void)bytes;
  static const struct {
    const char* begin;
    uint64_t library;
  } all[] = {
      /* libnccl itself is in every process of a torch that was built for CUDA, used or not. */
      {"libcuda.so", LS_LIBRARY_OF_DEVICES},
      {"librccl.so", LS_LIBRARY_OF_DEVICES},
  };
  const char* slash = strrchr(info->dlpi_name, '/');
  const char* name = slash == NULL ? info->dlpi_name : slash + 1;
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (strncmp(name, all[i].begin, strlen(all[i].begin)) == 0) *(uint64_t*)libraries |= all[i].library;
  return 0;
}

/* The loader's list of libraries is locked while we look at it, for some 10 us, and would stay so in a child that
 * another thread forks meanwhile: whoever forks waits for us. */
static pthread_mutex_t looking = PTHREAD_MUTEX_INITIALIZER;
static void before_fork(void) { pthread_mutex_lock(&looking); }
static void after_fork(void) { pthread_mutex_unlock(&looking); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static void note_libraries(struct ls_trail* trail) {
  if (pthread_mutex_trylock(&looking) != 0) return; /* somebody forks, or looks */
  uint64_t libraries = 0;
  dl_iterate_phdr(add_library, &libraries); /* opens no file */
  pthread_mutex_unlock(&looking);
  __atomic_fetch_or(&trail->libraries, libraries, __ATOMIC_RELAXED);
}

/* They may be loaded at any time. */
static void note_libraries_at_times(struct ls_trail* trail, int64_t now_ns) {
  static const int64_t kEveryNs = 5000000000;
  static int64_t noted_ns;
  int64_t noted = __atomic_load_n(&noted_ns, __ATOMIC_RELAXED);
  if (now_ns - noted >= kEveryNs &&
      __atomic_compare_exchange_n(&noted_ns, &noted, now_ns, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
    note_libraries(trail);
}

struct ls_trail* ls_collect_begin(const char* source, int rank, int size) {
  struct ls_trail* trail = ls_own_trail_make(&trail_of_process, source, "communication", rank, size, kCells);
  if (trail != NULL) note_libraries(trail);
  return trail;
}

int ls_collect_communicator(struct ls_trail* trail, uint64_t key) {
  static int told;
  const int index = ls_trail_add_communicator(trail, key);
  if (index >= 0) return index;
  __atomic_fetch_add(&trail->no_communicator, 1, __ATOMIC_RELAXED);
  if (__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) == 0)
    fprintf(stderr,
            "lockstep: rank %u tells nothing of further communicators: it has made %u, for which a trail has room\n",
            __atomic_load_n(&trail->origin.rank, __ATOMIC_RELAXED), LS_TRAIL_COMMUNICATORS);
  return -1;
}

int64_t ls_collect_now(void) { return ls_clock_ns(CLOCK_BOOTTIME); }

ls_handle ls_collect_launched(struct ls_trail* trail, struct ls_record* op, uint32_t communicator, uint8_t function) {
  struct ls_op_body* body = &op->body.op;
  memset(op, 0, sizeof *op);
  op->kind = LS_RECORD_OP;
  op->epoch = __atomic_load_n(&trail->origin.epoch, __ATOMIC_RELAXED);
  op->time_ns = ls_collect_now();
  note_libraries_at_times(trail, op->time_ns);
  body->communicator = communicator;
  body->tag = LS_NO_TAG;
  body->rank = __atomic_load_n(&trail->origin.rank, __ATOMIC_RELAXED);
  body->peer = body->waits_for = LS_NO_PEER;
  body->function = function;
  body->state = LS_OP_STARTED;
  body->alone = LS_UNKNOWN;
  if (!ls_collect_is_transfer(function)) {
    const int64_t left = __atomic_load_n(&trail->left_ns, __ATOMIC_RELAXED);
    ls_op_set_alone(op, left == 0 ? -1 : op->time_ns > left ? op->time_ns - left : 0);
    body->number = (uint32_t)__atomic_add_fetch(&trail->communicator[communicator].launched, 1, __ATOMIC_RELAXED);
  }
  return ls_trail_open(trail, op);
}

void ls_collect_count_ended(struct ls_trail* trail, const struct ls_record* op) {
  if (!ls_collect_is_transfer(op->body.op.function))
    __atomic_fetch_add(&trail->communicator[op->body.op.communicator].ended, 1, __ATOMIC_RELAXED);
}

void ls_collect_ended(struct ls_trail* trail, struct ls_record* op, uint8_t state, int64_t now_ns) {
  const int64_t took = now_ns - op->time_ns;
  op->time_ns = now_ns;
  ls_op_set_duration(op, took);
  op->body.op.state = state;
  op->body.op.waits_for = LS_NO_PEER;
  ls_trail_push(trail, op);
  ls_collect_count_ended(trail, op);
  if (!ls_collect_is_transfer(op->body.op.function)) __atomic_store_n(&trail->left_ns, now_ns, __ATOMIC_RELAXED);
}

void ls_collect_waited(struct ls_trail* trail, int64_t begin_ns, int64_t now_ns) {
  int64_t left = __atomic_load_n(&trail->left_ns, __ATOMIC_RELAXED), then;
  do {
    if (left == 0) return;
    /* What was before it left, and what another thread waited meanwhile, does not count again. */
    then = left + now_ns - (begin_ns > left ? begin_ns : left);
  } while (!__atomic_compare_exchange_n(&trail->left_ns, &left, then, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
