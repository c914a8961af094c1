/* The copy thread: sleeps until a save is submitted, copies it, says so. One per process, all signals blocked in it. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "lockstep/client/session.h"

enum {
  kWaitLimitSeconds = 60, /* a copy takes milliseconds; beyond this a device hangs, and the job must not hang with it */
  /* Training comes first where cores are short. While training waits for the copy, its core is free, so nothing is
     lost. */
  kNice = 10,
};

static void* copy_thread(void* argument) {
  struct ls_client* c = argument;
  struct ls_copier* copier = &c->copier;
  pthread_setname_np(pthread_self(), "lockstep-copy");
  setpriority(PRIO_PROCESS, 0, kNice); /* of this thread alone */
  pthread_mutex_lock(&copier->mutex);
  while (copier->state != LS_COPIER_STOP) {
    if (copier->state == LS_COPIER_BUSY) {
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

/* Signals of the job are for its own threads. */
static int start_without_signals(struct ls_client* c) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&c->copier.thread, NULL, copy_thread, c);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

int ls_copier_start(struct ls_client* c) {
  struct ls_copier* copier = &c->copier;
  if (copier->started) return 0;
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_mutex_init(&copier->mutex, NULL);
  pthread_cond_init(&copier->changed, &monotonic);
  pthread_condattr_destroy(&monotonic);
  copier->state = LS_COPIER_IDLE;
  const int error = start_without_signals(c);
  copier->started = error == 0;
  return error;
}

void ls_copier_stop(struct ls_client* c) {
  struct ls_copier* copier = &c->copier;
  if (!copier->started) return;
  pthread_mutex_lock(&copier->mutex);
  copier->state = LS_COPIER_STOP;
  pthread_cond_broadcast(&copier->changed);
  pthread_mutex_unlock(&copier->mutex);
  pthread_join(copier->thread, NULL);
  copier->started = false;
}

/* With the mutex held. Waits for the copy under way; beyond the limit it is torn, so that it never becomes DONE. */
static enum ls_result wait_until_idle(struct ls_copier* copier) {
  struct timespec limit;
  clock_gettime(CLOCK_MONOTONIC, &limit);
  limit.tv_sec += kWaitLimitSeconds;
  int error = 0;
  while (copier->state == LS_COPIER_BUSY && error != ETIMEDOUT) {
    error = pthread_cond_timedwait(&copier->changed, &copier->mutex, &limit);
  }
  if (copier->state != LS_COPIER_BUSY) return LS_OK;
  copier->torn = true;
  return (enum ls_result)ls_fail(LS_TIMEOUT, "a state copy did not end within %d s", kWaitLimitSeconds);
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
  if (busy) ls_add_blocked(c, begin);
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
