// Lengths of time as the steady clock counts them, for waits and deadlines.
#pragma once

#include <chrono>

#include "lockstep/base/units.h"

namespace lockstep {

// More than a century is a century: Now() may be added to it.
inline std::chrono::steady_clock::duration SteadyDuration(Seconds length) {
  return std::chrono::nanoseconds(ToNanos(length).value);
}

}  // namespace lockstep
