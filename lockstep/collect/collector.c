#include "lockstep/collect/collector.h"

#include <stdio.h>
#include <string.h>

#include "lockstep/record/clock.h"
#include "lockstep/record/own_trail.h"

enum { kCells = 8192 };

static struct ls_own_trail trail_of_process;

struct ls_trail* ls_collect_trail(void) { return ls_own_trail_made(&trail_of_process); }

struct ls_trail* ls_collect_begin(const char* source, int rank, int size) {
  return ls_own_trail_make(&trail_of_process, source, "communication", rank, size, kCells);
}

int ls_collect_communicator(struct ls_trail* trail, uint64_t key) {
  static int told;
  const int index = ls_trail_add_communicator(trail, key);
  if (index >= 0) return index;
  __atomic_fetch_add(&trail->no_communicator, 1, __ATOMIC_RELAXED);
  if (__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) == 0)
    fprintf(stderr,
            "lockstep: rank %u tells nothing of further communicators: it has made %u, for which a trail has room\n",
            trail->origin.rank, LS_TRAIL_COMMUNICATORS);
  return -1;
}

int64_t ls_collect_now(void) { return ls_clock_ns(CLOCK_BOOTTIME); }

ls_handle ls_collect_launched(struct ls_trail* trail, struct ls_record* op, uint32_t communicator, uint8_t function) {
  struct ls_op_body* body = &op->body.op;
  memset(op, 0, sizeof *op);
  op->kind = LS_RECORD_OP;
  op->epoch = __atomic_load_n(&trail->origin.epoch, __ATOMIC_RELAXED);
  op->time_ns = ls_collect_now();
  body->communicator = communicator;
  body->tag = LS_NO_TAG;
  body->rank = trail->origin.rank;
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

void ls_collect_ended(struct ls_trail* trail, struct ls_record* op, uint8_t state, int64_t now_ns) {
  const int64_t took = now_ns - op->time_ns;
  op->time_ns = now_ns;
  ls_op_set_duration(op, took);
  op->body.op.state = state;
  op->body.op.waits_for = LS_NO_PEER;
  ls_trail_push(trail, op);
  if (ls_collect_is_transfer(op->body.op.function)) return;
  __atomic_fetch_add(&trail->communicator[op->body.op.communicator].ended, 1, __ATOMIC_RELAXED);
  __atomic_store_n(&trail->left_ns, now_ns, __ATOMIC_RELAXED);
}

void ls_collect_waited(struct ls_trail* trail, int64_t begin_ns, int64_t now_ns) {
  int64_t left = __atomic_load_n(&trail->left_ns, __ATOMIC_RELAXED), then;
  do {
    if (left == 0) return;
    /* What was before it left, and what another thread waited meanwhile, does not count again. */
    then = left + now_ns - (begin_ns > left ? begin_ns : left);
  } while (!__atomic_compare_exchange_n(&trail->left_ns, &left, then, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}
