#define _GNU_SOURCE
#include "lockstep/client/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/client/life.h"
#include "lockstep/client/starter.h"
#include "lockstep/record/clock.h"

/* Whoever is to act on a loss that is no number has done so by then; beyond, somebody wants the job to go on. */
static const int64_t kHeldNs = 60 * INT64_C(1000000000);
enum { kHeldSteps = 16 };

static char last_error[512];
static struct ls_client* current; /* the one of this process, or of the parent it was forked from */

int ls_fail(int result, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_error, sizeof last_error, format, values);
  va_end(values);
  return result;
}
const char* ls_last_error(void) { return last_error; }

int64_t ls_now_ns(void) { return ls_clock_ns(CLOCK_BOOTTIME); }
bool ls_is_joined(const struct ls_client* c) { return c != NULL && c->pid == getpid(); }
bool ls_is_current(const struct ls_client* c) {
  return __atomic_load_n(&c->board->epoch, __ATOMIC_ACQUIRE) == c->epoch;
}
void ls_count(ls_atomic_u64* counter) {
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}
int64_t ls_add_blocked(struct ls_client* c, int64_t since_ns) {
  const int64_t blocked = ls_now_ns() - since_ns;
  c->blocked_step_ns += blocked;
  ls_atomic_u64* sum = &c->block->blocked_ns;
  __atomic_store_n(sum, __atomic_load_n(sum, __ATOMIC_RELAXED) + (uint64_t)blocked, __ATOMIC_RELAXED);
  return blocked;
}

/* ---- joining ---- */

static bool read_number(const char* name, const char* fallback, unsigned long long* value) {
  const char* text = getenv(name);
  if (text == NULL && fallback != NULL) text = getenv(fallback);
  if (text == NULL || *text == '\0') return false;
  char* end;
  errno = 0;
  *value = strtoull(text, &end, 10);
  return errno == 0 && *end == '\0' && *text != '-';
}

/* MAP_FAILED, or all of the object, whose size goes to *bytes. */
static void* map_whole(int fd, size_t* bytes) {
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0 || info.st_size <= 0) return MAP_FAILED;
  *bytes = (size_t)info.st_size;
  return mmap(NULL, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int map_board(struct ls_client* c, int fd) {
  void* memory = map_whole(fd, &c->board_bytes);
  if (memory == MAP_FAILED) return ls_fail(LS_REFUSED, "the starter's board cannot be mapped");
  c->board = memory;
  const bool ours = c->board_bytes >= sizeof *c->board && c->board->magic == LS_BOARD_MAGIC;
  if (!ours || c->board->version != LS_BOARD_VERSION) {
    return ls_fail(LS_REFUSED,
                   "the starter's board has another format: the client library and `lockstep` differ in version");
  }
  const uint32_t first = c->board->first_rank, ranks = c->board->ranks;
  if (c->rank < first || c->rank - first >= ranks || c->board_bytes < ls_board_bytes(ranks)) {
    return ls_fail(LS_REFUSED, "rank %u does not fit on a board of the %u ranks from %u on", c->rank, ranks, first);
  }
  c->world_size = c->board->world_size;
  c->index = c->rank - first;
  c->block = &c->board->rank[c->index];
  return LS_OK;
}

static int map_ring(struct ls_client* c, int fd) {
  if (fd < 0) return LS_OK; /* a starter that wants no records */
  void* memory = map_whole(fd, &c->ring_bytes);
  if (memory == MAP_FAILED) return ls_fail(LS_REFUSED, "the starter's record ring cannot be mapped");
  c->ring = ls_ring_attach(memory, c->ring_bytes);
  if (c->ring != NULL) return LS_OK;
  munmap(memory, c->ring_bytes);
  return ls_fail(LS_REFUSED, "the starter's record ring has another format");
}

static int say_hello(struct ls_client* c) {
  struct ls_join_message hello = {.kind = LS_JOIN_HELLO, .version = LS_JOIN_VERSION};
  hello.rank = (int32_t)c->rank;
  hello.pid = c->pid;
  hello.epoch = c->epoch;
  struct ls_answer answer;
  const int error = ls_starter_ask(&c->starter, &hello, &answer, LS_STARTER_TIMEOUT_MS);
  if (error != 0) return ls_fail(LS_REFUSED, "the starter did not answer: %s", strerror(error));
  int result = LS_OK;
  if (answer.message.kind != LS_JOIN_OK) result = ls_fail(LS_REFUSED, "%s", answer.message.text);
  if (result == LS_OK) result = map_board(c, answer.fd[0]);
  if (result == LS_OK) result = map_ring(c, answer.fd[1]);
  ls_answer_close(&answer);
  return result;
}

static void take_block(struct ls_client* c) {
  struct ls_rank_block* block = c->block;
  const double nan = __builtin_nan("");
  uint64_t nan_bits;
  memcpy(&nan_bits, &nan, sizeof nan_bits);
  ls_life_begin(block);
  __atomic_store_n(&block->pid, c->pid, __ATOMIC_RELAXED);
  __atomic_store_n(&block->step, -1, __ATOMIC_RELAXED);
  __atomic_store_n(&block->step_end_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->step_time_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->loop_begin_ns, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->steps, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->loss_bits, nan_bits, __ATOMIC_RELAXED);
  __atomic_store_n(&block->first_finite, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->newest_finite, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&block->other_worlds, LS_WORLDS_UNSAID, __ATOMIC_RELAXED);
  __atomic_store_n(&block->phase, LS_PHASE_STARTED, __ATOMIC_RELAXED);
  ls_block_begin_epoch(block, c->epoch);
}

static int join(struct ls_client* c, const char* run_directory) {
  unsigned long long rank, epoch;
  if (!read_number("LOCKSTEP_RANK", "RANK", &rank) || rank > INT32_MAX) {
    return ls_fail(LS_REFUSED, "LOCKSTEP_RUN is set, but neither LOCKSTEP_RANK nor RANK is a rank");
  }
  if (!read_number("LOCKSTEP_EPOCH", NULL, &epoch) || epoch == 0) {
    return ls_fail(LS_REFUSED, "LOCKSTEP_RUN is set, but LOCKSTEP_EPOCH is not a number above 0");
  }
  c->rank = (uint32_t)rank;
  c->epoch = epoch;
  c->starter = ls_starter_connect(run_directory);
  if (c->starter.socket < 0) return ls_fail(LS_REFUSED, "%s/" LS_JOIN_SOCKET ": %s", run_directory, strerror(errno));
  const int result = say_hello(c);
  if (result != LS_OK) return result;
  if (!ls_is_current(c)) return ls_fail(LS_REFUSED, "epoch %llu is over", epoch);
  take_block(c);
  c->alive = true;
  return LS_OK;
}

static void destroy(struct ls_client* c) {
  ls_copier_close(c);
  ls_buffers_free(c);
  if (c->ring != NULL) munmap(c->ring, c->ring_bytes);
  const bool alive = c->alive && !ls_life_end(c->block);
  if (c->board != NULL && !alive) munmap(c->board, c->board_bytes);
  ls_starter_close(&c->starter);
  free(c->save.piece);
  free(c);
}

struct ls_client* ls_join(void) {
  const char* run_directory = getenv("LOCKSTEP_RUN");
  last_error[0] = '\0';
  if (run_directory == NULL || *run_directory == '\0') return NULL;
  if (ls_is_joined(current)) return current;
  current = NULL; /* a parent's: left alone, its memory is copy-on-write here */
  struct ls_client* c = calloc(1, sizeof *c);
  if (c == NULL) return NULL;
  c->pid = getpid();
  c->starter.socket = -1;
  if (join(c, run_directory) == LS_OK) return current = c;
  destroy(c);
  return NULL;
}

void ls_leave(struct ls_client* c) {
  if (!ls_is_joined(c)) return;
  ls_save_wait(c);
  if (ls_is_current(c)) __atomic_store_n(&c->block->phase, LS_PHASE_FINISHED, __ATOMIC_RELEASE);
  current = NULL;
  destroy(c);
}

int ls_rank(const struct ls_client* c) { return (int)c->rank; }

void ls_say_other_worlds(struct ls_client* c, int what) {
  if (ls_is_joined(c) && ls_is_current(c)) __atomic_store_n(&c->block->other_worlds, (uint64_t)what, __ATOMIC_RELEASE);
}

/* ---- step clock ---- */

void ls_loop_begin(struct ls_client* c, int64_t last_step) {
  if (!ls_is_joined(c) || !ls_is_current(c)) return;
  c->last_end_ns = ls_now_ns();
  memset(c->part_ns, 0, sizeof c->part_ns); /* what was before belongs to no step */
  c->mark_ns = c->last_end_ns;
  c->part = LS_PART_DATA;
  c->forwards = 0;
  __atomic_store_n(&c->block->step, last_step, __ATOMIC_RELAXED);
  __atomic_store_n(&c->block->steps, 0, __ATOMIC_RELAXED);
  __atomic_store_n(&c->block->loop_begin_ns, c->last_end_ns, __ATOMIC_RELAXED);
  __atomic_store_n(&c->block->phase, LS_PHASE_RESTORED, __ATOMIC_RELEASE);
}

static void push_step(struct ls_client* c, int64_t step, double loss, int64_t now, int64_t duration) {
  if (c->ring == NULL) return;
  struct ls_record record = {.kind = LS_RECORD_STEP, .epoch = (uint32_t)c->epoch, .time_ns = now};
  record.delta_shift = ls_delta_shift(duration);
  record.body.step.step = step;
  record.body.step.loss = loss;
  record.body.step.duration = ls_delta(duration, record.delta_shift);
  record.body.step.blocked = ls_delta(c->blocked_step_ns, record.delta_shift);
  record.body.step.rank = c->rank;
  if (c->forwards == 1) { /* of several, sums would not tell when */
    record.body.step.save = ls_delta(c->part_ns[LS_PART_SAVE], record.delta_shift);
    record.body.step.data = ls_delta(c->part_ns[LS_PART_DATA], record.delta_shift);
    record.body.step.forward = ls_delta(c->part_ns[LS_PART_FORWARD], record.delta_shift);
    record.body.step.backward = ls_delta(c->part_ns[LS_PART_BACKWARD], record.delta_shift);
    record.body.step.optimizer = ls_delta(c->part_ns[LS_PART_OPTIMIZER], record.delta_shift);
  }
  if (!ls_ring_push(c->ring, &record)) ls_count(&c->block->dropped);
}

static void account_part(struct ls_client* c, int part, int64_t now) {
  if (c->mark_ns != 0) c->part_ns[c->part] += now - c->mark_ns;
  c->part = part;
  c->mark_ns = now;
}

void ls_mark(struct ls_client* c, int part) {
  if (!ls_is_joined(c) || part < 0 || part >= LS_PARTS) return;
  account_part(c, part, ls_now_ns());
  c->forwards += part == LS_PART_FORWARD;
}

static void tell_loss(struct ls_client* c, int64_t step, double loss, int64_t now) {
  struct ls_rank_block* block = c->block;
  uint64_t loss_bits;
  memcpy(&loss_bits, &loss, sizeof loss_bits);
  if (__builtin_isfinite(loss)) {
    __atomic_store_n(&block->newest_finite, step + 1, __ATOMIC_RELAXED);
    if (block->first_finite == 0) __atomic_store_n(&block->first_finite, step + 1, __ATOMIC_RELAXED);
    c->bad_steps = 0;
  } else if (block->first_finite != 0 && (c->bad_steps > 0 || __builtin_isinf(loss))) { /* NaN: none was told */
    if (c->bad_steps++ == 0) c->bad_since_ns = now;
  }
  __atomic_store_n(&block->loss_bits, loss_bits, __ATOMIC_RELAXED);
}

bool ls_loss_is_bad(const struct ls_client* c) {
  if (c->bad_steps == 0) return false;
  return c->bad_steps <= kHeldSteps || ls_now_ns() - c->bad_since_ns < kHeldNs;
}

void ls_step(struct ls_client* c, int64_t step, double loss) {
  if (!ls_is_joined(c) || !ls_is_current(c)) return;
  const int64_t now = ls_now_ns();
  account_part(c, LS_PART_SAVE, now);
  const int64_t duration = c->last_end_ns != 0 ? now - c->last_end_ns : 0;
  struct ls_rank_block* block = c->block;
  if (c->last_end_ns == 0)
    __atomic_store_n(&block->loop_begin_ns, now, __ATOMIC_RELAXED);
  else
    __atomic_fetch_add(&block->steps, 1, __ATOMIC_RELAXED);
  tell_loss(c, step, loss, now);
  __atomic_store_n(&block->step_time_ns, duration, __ATOMIC_RELAXED);
  __atomic_store_n(&block->step_end_ns, now, __ATOMIC_RELAXED);
  __atomic_store_n(&block->step, step, __ATOMIC_RELEASE);
  __atomic_store_n(&block->phase, LS_PHASE_STEPPING, __ATOMIC_RELEASE);
  push_step(c, step, loss, now, duration);
  c->last_end_ns = now;
  c->blocked_step_ns = 0;
  memset(c->part_ns, 0, sizeof c->part_ns);
  c->forwards = 0;
}
