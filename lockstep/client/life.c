#define _GNU_SOURCE
#include "lockstep/client/life.h"

#include <pthread.h>
#include <string.h>

LS_STATIC_ASSERT(sizeof(pthread_mutex_t) <= sizeof(((struct ls_rank_block*)0)->life), "docs/formats/board.md");

static pthread_mutex_t* mutex_of(struct ls_rank_block* block) { return (pthread_mutex_t*)block->life; }

void ls_life_begin(struct ls_rank_block* block) {
  pthread_mutexattr_t robust;
  memset(block->life, 0, sizeof block->life); /* what an earlier epoch's worker left */
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  if (pthread_mutex_init(mutex_of(block), &robust) == 0) pthread_mutex_trylock(mutex_of(block));
  pthread_mutexattr_destroy(&robust);
}

bool ls_life_end(struct ls_rank_block* block) {
  return *ls_life_word(block) == 0 || pthread_mutex_unlock(mutex_of(block)) == 0;
}
