// The median of floats that stand anywhere. Of so many that a copy would cost memory and time, by counting their upper
// bits, then the lower ones of those in the middle; exact all the same.
//
//   const double median = MedianOf(values.size(), [&](const auto& take) { for (float value : values) take(value); });
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "lockstep/explain/sample.h"

namespace lockstep::explain {

// A number that orders as the float does.
inline uint32_t OrderOf(float value) {
  constexpr uint32_t kSign = 1U << 31U;
  const auto bits = std::bit_cast<uint32_t>(value);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}
inline float FromOrder(uint32_t order) {
  constexpr uint32_t kSign = 1U << 31U;
  return std::bit_cast<float>((order & kSign) != 0 ? order & ~kSign : ~order);
}

// `each(take)` calls take(float) for every value, none a NaN; it is called three or four times.
template <typename Each>
double MedianByCounting(const Each& each) {
  constexpr uint32_t kHalf = 16, kBins = 1U << kHalf;
  std::vector<uint32_t> upper(kBins), lower;
  each([&upper](float value) { ++upper[OrderOf(value) >> kHalf]; });
  const uint64_t count = std::accumulate(upper.begin(), upper.end(), uint64_t{0});
  if (count == 0) return 0;
  // The bin that holds the value with so many before it; `place` becomes how many of them are in the bin, too.
  const auto bin_of = [](const std::vector<uint32_t>& bins, uint64_t& place) {
    uint32_t bin = 0;
    while (place >= bins[bin]) place -= bins[bin++];
    return bin;
  };
  uint32_t counted = kBins;  // the bin whose lower halves are counted: none yet
  const auto value_at = [&](uint64_t place) {
    const uint32_t bin = bin_of(upper, place);
    if (bin != counted) {
      lower.assign(kBins, 0);
      each([&lower, bin](float value) {
        if (const uint32_t order = OrderOf(value); order >> kHalf == bin) ++lower[order - (bin << kHalf)];
      });
      counted = bin;
    }
    return static_cast<double>(FromOrder(bin << kHalf | bin_of(lower, place)));
  };
  const double middle = value_at(count / 2);
  return count % 2 == 1 ? middle : (middle + value_at(count / 2 - 1)) / 2;
}

template <typename Each>
double MedianOf(size_t at_most, const Each& each) {
  constexpr size_t kWorthCounting = 1 << 16;
  if (at_most >= kWorthCounting) return MedianByCounting(each);
  std::vector<double> values;
  values.reserve(at_most);
  each([&values](float value) { values.push_back(static_cast<double>(value)); });
  return Median(std::move(values));
}

}  // namespace lockstep::explain
