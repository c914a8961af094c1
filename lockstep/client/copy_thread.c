/* The copy thread: sleeps until a save is submitted, copies it, says so. One per process, signals blocked in it.
 *
 * Training comes first where cores are short, so the thread asks for SCHED_IDLE: it runs where nobody else would, and
 * whoever wakes takes the core from it at once. Where all cores are always busy it would starve so, and training with
 * it: when training waits long for one copy after another, a thread of low priority takes its place for good.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "lockstep/client/session.h"

enum {
  kWaitLimitSeconds = 60, /* a copy takes milliseconds; beyond this a device hangs, and the job must not hang with it */
  /* All ranks come to step() at about the same moment, and some a little later: a copy that has begun on the core of
     one of these sends it to wait for a turn elsewhere, for 3 ms (measured on CPU). */
  kHeadStartNanos = 2 * 1000 * 1000,
  kLongWaitNanos = 5 * 1000 * 1000,
  kStarvedSaves = 3, /* in a row for which training waited so long */
  kNice = 10,        /* after it starved */
};

/* Of the calling thread alone. Refused by some sandboxes, and then it runs as training does. */
static void give_way(bool starved) {
  const struct sched_param none = {0};
  if (starved) {
    setpriority(PRIO_PROCESS, 0, kNice);
  } else {
    sched_setscheduler(0, SCHED_IDLE, &none);
  }
}

/* With the mutex held: until the copy is over, or wanted if that counts, or so much time has passed. */
static void wait_while_busy(struct ls_copier* copier, int64_t nanos, bool until_wanted) {
  struct timespec limit;
  clock_gettime(CLOCK_MONOTONIC, &limit);
  limit.tv_sec += (nanos + limit.tv_nsec) / 1000000000;
  limit.tv_nsec = (nanos + limit.tv_nsec) % 1000000000;
  int error = 0;
  while (copier->state == LS_COPIER_BUSY && !(until_wanted && copier->wanted) && error != ETIMEDOUT) {
    error = pthread_cond_timedwait(&copier->changed, &copier->mutex, &limit);
  }
}

static void* copy_thread(void* argument) {
  struct ls_client* c = argument;
  struct ls_copier* copier = &c->copier;
  pthread_setname_np(pthread_self(), "lockstep-copy");
  give_way(copier->starved);
  pthread_mutex_lock(&copier->mutex);
  while (copier->state != LS_COPIER_STOP) {
    if (copier->state == LS_COPIER_BUSY) {
      wait_while_busy(copier, kHeadStartNanos, true);
      pthread_mutex_unlock(&copier->mutex);
      const enum ls_result result = ls_save_finish(c);
      pthread_mutex_lock(&copier->mutex);
      copier->result = result;
      if (copier->state == LS_COPIER_BUSY) copier->state = LS_COPIER_IDLE; /* and not STOP */
      pthread_cond_broadcast(&copier->changed);
    } else {
      pthread_cond_wait(&copier->changed, &copier->mutex);
    }
  }
  pthread_mutex_unlock(&copier->mutex);
  return NULL;
}

/* Signals of the job are for its own threads, but for those of fault.h. */
static int start_without_signals(struct ls_client* c) {
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&c->copier.thread, NULL, copy_thread, c);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

/* Fresh mutex and condition, and a thread that waits for work. */
static int start(struct ls_client* c) {
  struct ls_copier* copier = &c->copier;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&copier->mutex, NULL);
  pthread_cond_init(&copier->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  copier->state = LS_COPIER_IDLE;
  copier->ends = false;
  const int error = start_without_signals(c);
  copier->started = error == 0;
  return error;
}

int ls_copier_start(struct ls_client* c) { return c->copier.started ? 0 : start(c); }

void ls_copier_stop(struct ls_client* c) {
  struct ls_copier* copier = &c->copier;
  if (!copier->started) return;
  pthread_mutex_lock(&copier->mutex);
  copier->state = LS_COPIER_STOP;
  __atomic_store_n(&copier->ends, true, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&copier->changed);
  pthread_mutex_unlock(&copier->mutex);
  pthread_join(copier->thread, NULL);
  copier->started = false;
}

/* With the mutex held. Waits for the copy under way; beyond the limit it is torn, so that it never becomes DONE. */
static enum ls_result wait_until_idle(struct ls_copier* copier) {
  copier->wanted = true;
  pthread_cond_broadcast(&copier->changed);
  wait_while_busy(copier, kWaitLimitSeconds * INT64_C(1000000000), false);
  copier->wanted = false;
  if (copier->state != LS_COPIER_BUSY) return LS_OK;
  copier->torn = true;
  return (enum ls_result)ls_fail(LS_TIMEOUT, "a state copy did not end within %d s", kWaitLimitSeconds);
}

/* A thread can't raise itself from SCHED_IDLE without a right that few have; a new one begins where training stands.
   If none can be had, the next saves are copied by the training thread. */
void ls_copier_feed(struct ls_client* c) {
  struct ls_copier* copier = &c->copier;
  copier->long_waits = copier->waited_ns >= kLongWaitNanos ? copier->long_waits + 1 : 0;
  copier->waited_ns = 0;
  if (copier->starved || copier->long_waits < kStarvedSaves) return;
  copier->starved = true;
  ls_copier_stop(c);
  start(c);
}

int ls_save_wait(struct ls_client* c) {
  if (!ls_is_joined(c)) return LS_NOT_JOINED;
  struct ls_copier* copier = &c->copier;
  if (!copier->started) return LS_OK;
  const int64_t begin = ls_now_ns();
  pthread_mutex_lock(&copier->mutex);
  const bool busy = copier->state == LS_COPIER_BUSY;
  enum ls_result result = wait_until_idle(copier);
  if (result == LS_OK) {
    result = copier->result;
    copier->result = LS_OK;
  }
  pthread_mutex_unlock(&copier->mutex);
  if (busy) copier->waited_ns += ls_add_blocked(c, begin);
  return (int)result;
}

void ls_save_spoil(struct ls_client* c) {
  if (!ls_is_joined(c) || !c->copier.started || c->save.id.epoch == 0) return;
  pthread_mutex_lock(&c->copier.mutex);
  const bool busy = c->copier.state == LS_COPIER_BUSY;
  c->copier.torn = c->copier.torn || busy;
  wait_until_idle(&c->copier);
  pthread_mutex_unlock(&c->copier.mutex);
  const int slot = ls_slot_find(c->block, c->save.id);
  if (slot < 0 || !ls_is_current(c)) return; /* the copy thread saw `torn` in time, or it was never DONE */
  __atomic_store_n(&c->block->slot[slot].state, LS_SLOT_EMPTY, __ATOMIC_RELEASE);
  ls_count(&c->block->torn);
}
