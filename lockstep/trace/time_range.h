// Which times of a trace are believed, ns. Differences of any two of them fit in 64 bits, also where the begin of a
// recording was added.
#pragma once

#include <cstdint>

namespace lockstep::trace {

inline constexpr int64_t kLatest = 2'200'000'000'000'000'000;  // since 1970: in 2039
inline constexpr int64_t kLongest = 100'000'000'000'000'000;   // of one op: three years

constexpr bool IsInRange(int64_t ns) { return ns > -kLatest && ns < kLatest; }
// Since the begin of a recording.
constexpr bool IsInRecording(int64_t ns) { return ns >= 0 && ns < kLatest / 2; }

}  // namespace lockstep::trace
