// Units that cross parts. Seconds for reports and limits, Nanos for time stamps, Bytes for sizes: none converts
// silently to another.
#pragma once

#include <compare>
#include <cstdint>

namespace lockstep {

template <typename Tag, typename Rep>
struct Quantity {
  Rep value = 0;
  constexpr auto operator<=>(const Quantity&) const = default;
  constexpr Quantity operator+(Quantity other) const { return {value + other.value}; }
  constexpr Quantity operator-(Quantity other) const { return {value - other.value}; }
  constexpr Quantity operator*(Rep factor) const { return {value * factor}; }
  constexpr Quantity& operator+=(Quantity other) { return value += other.value, *this; }
};

using Seconds = Quantity<struct SecondsTag, double>;
using Nanos = Quantity<struct NanosTag, int64_t>;  // a duration, or a moment on CLOCK_BOOTTIME
using Bytes = Quantity<struct BytesTag, uint64_t>;

constexpr Seconds ToSeconds(Nanos nanos) { return {static_cast<double>(nanos.value) * 1e-9}; }
// More than a century is a century: moments may be added to it.
constexpr Nanos ToNanos(Seconds seconds) {
  constexpr double kMost = 4e18;
  const double nanos = seconds.value * 1e9;
  return {static_cast<int64_t>(nanos < -kMost ? -kMost : nanos < kMost ? nanos : kMost)};
}

}  // namespace lockstep
