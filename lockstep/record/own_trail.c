#define _GNU_SOURCE
#include "lockstep/record/own_trail.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/record/clock.h"

/* Of the first variable that is set; else `otherwise`. */
static uint32_t number_in_environment(const char* const names[], int otherwise) {
  for (; *names != NULL; ++names) {
    const char* text = getenv(*names);
    if (text != NULL && *text != '\0') return (uint32_t)strtoul(text, NULL, 10);
  }
  return otherwise < 0 ? 0 : (uint32_t)otherwise;
}
static const char* const kRank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
static const char* const kWorld[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
static const char* const kEpoch[] = {"LOCKSTEP_EPOCH", NULL};

/* The environment may be that of a launcher, or of a step of Slurm that has one task for all ranks: no communicator is
 * larger than the job. */
static void identify(struct ls_origin* origin, uint32_t rank, uint32_t world, int rank_in, int size) {
  const bool fits = rank < world && (size <= 0 || (uint32_t)size <= world);
  __atomic_store_n(&origin->rank, fits || size <= 0 ? rank : (uint32_t)rank_in, __ATOMIC_RELAXED);
  __atomic_store_n(&origin->world, fits || size <= 0 ? world : (uint32_t)size, __ATOMIC_RELAXED);
}

static struct ls_trail* create(const char* directory, const char* source, const char* of_what, int rank, int size,
                               uint32_t capacity) {
  struct ls_origin origin;
  memset(&origin, 0, sizeof origin);
  identify(&origin, number_in_environment(kRank, rank), number_in_environment(kWorld, size), rank, size);
  origin.epoch = number_in_environment(kEpoch, 0);
  origin.pid = (uint32_t)getpid();
  gethostname(origin.host, sizeof origin.host - 1);
  snprintf(origin.source, sizeof origin.source, "%s", source);
  mkdir(directory, 0700); /* it may be there */
  struct ls_trail* made = NULL;
  char path[4096];
  for (int again = 0; made == NULL && again < 16; ++again) {
    /* A process may have several, and in containers all the rest comes again. */
    const int length = snprintf(path, sizeof path, "%s/epoch_%u.%s.%u.%08x.trail", directory, origin.epoch, origin.host,
                                origin.pid, (uint32_t)ls_clock_ns(CLOCK_BOOTTIME));
    if (length < 0 || (size_t)length >= sizeof path)
      errno = ENAMETOOLONG;
    else
      made = ls_trail_create(path, &origin, capacity);
    if (made == NULL && errno != EEXIST) break;
  }
  if (made == NULL)
    fprintf(stderr, "lockstep: rank %u tells nothing of its %s: %s: %s\n", origin.rank, of_what, path, strerror(errno));
  return made;
}

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, and who is in it */
static struct ls_own_trail* all;

static void forget_in_child(void) {
  while (all != NULL) {
    struct ls_own_trail* own = all;
    all = own->next;
    memset(own, 0, sizeof *own);
  }
  pthread_mutex_init(&making, NULL);
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, forget_in_child); }

struct ls_trail* ls_own_trail_make(struct ls_own_trail* own, const char* source, const char* of_what, int rank,
                                   int size, uint32_t capacity) {
  struct ls_trail* made = ls_own_trail_made(own);
  const char* directory = getenv("LOCKSTEP_TRAILS");
  /* A rank that enters its training function again is in another epoch. */
  if (made != NULL) {
    __atomic_store_n(&made->origin.epoch, number_in_environment(kEpoch, 0), __ATOMIC_RELAXED);
    identify(&made->origin, __atomic_load_n(&made->origin.rank, __ATOMIC_RELAXED),
             __atomic_load_n(&made->origin.world, __ATOMIC_RELAXED), rank, size);
  }
  if (made != NULL || directory == NULL || *directory == '\0') return made;
  const int before = errno;
  pthread_mutex_lock(&making);
  if (!own->tried) {
    __atomic_store_n(&own->trail, create(directory, source, of_what, rank, size, capacity), __ATOMIC_RELEASE);
    own->tried = 1;
    own->next = all;
    all = own;
  }
  pthread_mutex_unlock(&making);
  errno = before;
  return ls_own_trail_made(own);
}
