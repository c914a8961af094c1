#include "lockstep/base/clock.h"

#include <ctime>

namespace lockstep {
namespace {

Nanos Read(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return {time.tv_sec * 1'000'000'000 + time.tv_nsec};
}

}  // namespace

Nanos SystemClock::Now() const { return Read(CLOCK_BOOTTIME); }
Nanos SystemClock::WallNow() const { return Read(CLOCK_REALTIME); }

}  // namespace lockstep
