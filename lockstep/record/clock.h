/* Clocks of the machine, in nanoseconds. C17 and C++20; libc only. */
#ifndef LOCKSTEP_RECORD_CLOCK_H_
#define LOCKSTEP_RECORD_CLOCK_H_

#include <stdint.h>
#include <time.h>

static inline int64_t ls_clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif /* LOCKSTEP_RECORD_CLOCK_H_ */
