#define _GNU_SOURCE /* MAP_POPULATE */
#include "lockstep/record/trail.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "lockstep/record/clock.h"

/* A cell is being written for nanoseconds; a reader that meets one looks this many times before it gives it up. */
enum { kLooks = 1000 };
/* In a place it waits, so long a time in all, for a writer that lost its processor in the middle. */
enum { kRests = 50, kRestNs = 1000000 };

size_t ls_trail_bytes(uint32_t capacity) {
  return sizeof(struct ls_trail) + (size_t)capacity * (LS_CELL_BYTES + sizeof(uint32_t));
}

static struct ls_record* cells(struct ls_trail* trail) { return (struct ls_record*)(trail + 1); }
static uint32_t* stamps(struct ls_trail* trail) { return (uint32_t*)(cells(trail) + trail->capacity); }
static const struct ls_record* const_cells(const struct ls_trail* trail) {
  return (const struct ls_record*)(trail + 1);
}
static const uint32_t* const_stamps(const struct ls_trail* trail) {
  return (const uint32_t*)(const_cells(trail) + trail->capacity);
}

static uint32_t stamp_of(const struct ls_trail* trail, uint64_t at) { return (uint32_t)(at / trail->capacity) + 1; }

static void count(uint64_t* counter) { __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED); }

/* ---- making ---- */

/* Beyond the limit on files the kernel would end the process (SIGXFSZ), which is the job's. */
static bool is_allowed(size_t bytes) {
  struct rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

static void* reserve(int fd, size_t bytes) {
  const int failed = is_allowed(bytes) ? posix_fallocate(fd, 0, (off_t)bytes) : EFBIG;
  if (failed != 0) {
    errno = failed;
    return NULL;
  }
  /* Its pages are there from the start, too: no op waits for one. */
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

struct ls_trail* ls_trail_create(const char* path, const struct ls_origin* origin, uint32_t capacity) {
  const int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return NULL;
  struct ls_trail* trail = reserve(fd, ls_trail_bytes(capacity));
  const int failed = errno;
  close(fd);
  if (trail == NULL) {
    unlink(path);
    errno = failed;
    return NULL;
  }
  trail->capacity = capacity;
  trail->places = LS_TRAIL_PLACES;
  trail->communicators = LS_TRAIL_COMMUNICATORS;
  trail->wall_minus_boot_ns = ls_clock_ns(CLOCK_REALTIME) - ls_clock_ns(CLOCK_BOOTTIME);
  trail->origin = *origin;
  __atomic_store_n(&trail->magic, LS_TRAIL_MAGIC, __ATOMIC_RELEASE);
  return trail;
}

struct ls_trail* ls_trail_attach(void* memory, size_t bytes) {
  struct ls_trail* trail = memory;
  if (bytes < sizeof *trail || __atomic_load_n(&trail->magic, __ATOMIC_ACQUIRE) != LS_TRAIL_MAGIC) return NULL;
  const uint32_t capacity = trail->capacity;
  const bool power_of_two = capacity != 0 && (capacity & (capacity - 1)) == 0;
  const bool ours = trail->places == LS_TRAIL_PLACES && trail->communicators == LS_TRAIL_COMMUNICATORS;
  return power_of_two && ours && ls_trail_bytes(capacity) <= bytes ? trail : NULL;
}

/* ---- cells ---- */

/* Word by word, so that whoever reads a new word also sees what its writer did before (a stamp of 0, say). */
static void write_record(struct ls_record* to, const struct ls_record* from) {
  uint64_t words[LS_CELL_BYTES / 8];
  memcpy(words, from, sizeof words);
  for (size_t i = 0; i < LS_CELL_BYTES / 8; ++i) __atomic_store_n((uint64_t*)to + i, words[i], __ATOMIC_RELEASE);
}
static void read_record(struct ls_record* to, const struct ls_record* from) {
  uint64_t words[LS_CELL_BYTES / 8];
  for (size_t i = 0; i < LS_CELL_BYTES / 8; ++i)
    words[i] = __atomic_load_n((const uint64_t*)from + i, __ATOMIC_ACQUIRE);
  memcpy(to, words, sizeof words);
}

void ls_trail_push(struct ls_trail* trail, const struct ls_record* record) {
  const uint64_t at = __atomic_fetch_add(&trail->head, 1, __ATOMIC_RELAXED);
  const uint64_t index = at & (trail->capacity - 1u);
  uint32_t* stamp = stamps(trail) + index;
  if (__atomic_exchange_n(stamp, 0, __ATOMIC_ACQUIRE) == 0 && at >= trail->capacity) {
    count(&trail->no_cell);
    return;
  }
  write_record(cells(trail) + index, record);
  __atomic_store_n(stamp, stamp_of(trail, at), __ATOMIC_RELEASE);
  /* The next cell was last touched a whole round ago: by the next push it is there. */
  const uint64_t next = (index + 1) & (trail->capacity - 1u);
  __builtin_prefetch(cells(trail) + next, 1);
  __builtin_prefetch(stamps(trail) + next, 1);
}

/* Whether the cell could be read whole. */
static bool read_cell(const struct ls_trail* trail, uint64_t at, struct ls_record* record) {
  const uint64_t index = at & (trail->capacity - 1u);
  const uint32_t* stamp = const_stamps(trail) + index;
  const uint32_t wanted = stamp_of(trail, at);
  uint32_t seen = 0;
  for (int look = 0; look < kLooks && seen != wanted; ++look) seen = __atomic_load_n(stamp, __ATOMIC_ACQUIRE);
  if (seen != wanted) return false;
  read_record(record, const_cells(trail) + index);
  return __atomic_load_n(stamp, __ATOMIC_RELAXED) == wanted;
}

size_t ls_trail_read(const struct ls_trail* trail, uint64_t* at, uint64_t* missed, struct ls_record* records,
                     size_t capacity) {
  const uint64_t head = __atomic_load_n(&trail->head, __ATOMIC_ACQUIRE);
  if (*at > head) *at = head; /* only a writer that scribbles takes its head back */
  if (head - *at > trail->capacity) {
    *missed += head - *at - trail->capacity;
    *at = head - trail->capacity;
  }
  size_t taken = 0;
  for (; *at != head && taken < capacity; ++*at) {
    if (read_cell(trail, *at, &records[taken]))
      ++taken;
    else
      ++*missed;
  }
  return taken;
}

/* ---- places ---- */

/* Places are numbered from 1 in handles, so that 0 is none. */
static ls_handle handle_of(uint32_t place, uint32_t generation) { return (uint64_t)generation << 32 | (place + 1); }
static uint32_t place_of(ls_handle handle) { return (uint32_t)handle - 1; }

/* False: the handle is of nothing, of the past, or of somebody's making. */
static bool is_valid(const struct ls_trail* trail, ls_handle handle) {
  return place_of(handle) < LS_TRAIL_PLACES && (handle >> 32) % 2 == 1 &&
         __atomic_load_n(&trail->generation[place_of(handle)], __ATOMIC_ACQUIRE) == (uint32_t)(handle >> 32);
}

/* Whoever turns `changes` from even to odd may write, until it is left. */
static bool take(struct ls_trail* trail, uint32_t place) {
  uint32_t even = __atomic_load_n(&trail->changes[place], __ATOMIC_RELAXED) & ~1u;
  return __atomic_compare_exchange_n(&trail->changes[place], &even, even + 1, false, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED);
}
static void leave(struct ls_trail* trail, uint32_t place) {
  __atomic_fetch_add(&trail->changes[place], 1, __ATOMIC_RELEASE);
}

/* Taken, and still what the handle is of. */
static bool take_by(struct ls_trail* trail, ls_handle handle) {
  if (!is_valid(trail, handle) || !take(trail, place_of(handle))) return false;
  if (is_valid(trail, handle)) return true;
  leave(trail, place_of(handle));
  return false;
}

ls_handle ls_trail_open(struct ls_trail* trail, const struct ls_record* record) {
  for (uint32_t word = 0; word < LS_TRAIL_PLACES / 64; ++word) {
    uint64_t used = __atomic_load_n(&trail->used[word], __ATOMIC_RELAXED);
    while (~used != 0) {
      const uint64_t bit = ~used & (used + 1); /* the lowest that is free */
      used |= bit;
      if ((__atomic_fetch_or(&trail->used[word], bit, __ATOMIC_ACQUIRE) & bit) != 0) continue;
      const uint32_t place = word * 64 + (uint32_t)__builtin_ctzll(bit);
      if (!take(trail, place)) continue; /* somebody with an old handle is at it: it stays used, for good */
      const uint32_t generation = __atomic_load_n(&trail->generation[place], __ATOMIC_RELAXED) + 1;
      write_record(&trail->place[place], record);
      __atomic_store_n(&trail->generation[place], generation, __ATOMIC_RELEASE);
      leave(trail, place);
      return handle_of(place, generation);
    }
  }
  count(&trail->no_place);
  return 0;
}

bool ls_trail_get(const struct ls_trail* trail, ls_handle handle, struct ls_record* record) {
  if (!is_valid(trail, handle)) return false;
  read_record(record, &trail->place[place_of(handle)]);
  return is_valid(trail, handle);
}

bool ls_trail_set(struct ls_trail* trail, ls_handle handle, const struct ls_record* record) {
  if (!take_by(trail, handle)) return false;
  write_record(&trail->place[place_of(handle)], record);
  leave(trail, place_of(handle));
  return true;
}

bool ls_trail_close(struct ls_trail* trail, ls_handle handle) {
  const uint32_t place = place_of(handle);
  if (!take_by(trail, handle)) return false;
  __atomic_store_n(&trail->generation[place], (uint32_t)(handle >> 32) + 1, __ATOMIC_RELEASE);
  leave(trail, place);
  __atomic_fetch_and(&trail->used[place / 64], ~(1ull << place % 64), __ATOMIC_RELEASE);
  return true;
}

/* Whether something is under way in the place. What a process that was killed left half changed is given as it
 * stands: to leave it out would be to say that there is nothing. */
static bool read_place(const struct ls_trail* trail, uint32_t place, struct ls_record* record) {
  uint32_t before = 1, after = 0;
  for (int look = 0; look < kLooks + kRests && (before != after || before % 2 != 0); ++look) {
    if (look >= kLooks) nanosleep(&(struct timespec){0, kRestNs}, NULL);
    before = __atomic_load_n(&trail->changes[place], __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&trail->generation[place], __ATOMIC_ACQUIRE) % 2 == 0) return false;
    read_record(record, &trail->place[place]);
    after = __atomic_load_n(&trail->changes[place], __ATOMIC_RELAXED);
  }
  return true;
}

size_t ls_trail_under_way(const struct ls_trail* trail, struct ls_record* records) {
  size_t taken = 0;
  for (uint32_t place = 0; place < LS_TRAIL_PLACES; ++place) taken += read_place(trail, place, &records[taken]);
  return taken;
}

/* ---- communicators ---- */

int ls_trail_find_communicator(const struct ls_trail* trail, uint64_t key) {
  for (int i = 0; i < (int)LS_TRAIL_COMMUNICATORS; ++i) {
    const uint64_t seen = __atomic_load_n(&trail->communicator[i].key, __ATOMIC_ACQUIRE);
    if (seen == key) return i;
    if (seen == 0) return -1; /* entries are taken from the front */
  }
  return -1;
}

int ls_trail_add_communicator(struct ls_trail* trail, uint64_t key) {
  const int old = ls_trail_find_communicator(trail, key);
  if (old >= 0) __atomic_store_n(&trail->communicator[old].key, LS_NO_KEY, __ATOMIC_RELEASE);
  for (int i = 0; i < (int)LS_TRAIL_COMMUNICATORS; ++i) {
    uint64_t none = 0;
    if (!__atomic_compare_exchange_n(&trail->communicator[i].key, &none, key, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
      continue;
    trail->communicator[i].created_ns = ls_clock_ns(CLOCK_BOOTTIME);
    trail->communicator[i].epoch = __atomic_load_n(&trail->origin.epoch, __ATOMIC_RELAXED);
    return i;
  }
  return -1;
}
