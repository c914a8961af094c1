// The middle of some values, and how far they lie from it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "lockstep/base/select.h"

namespace lockstep {

// Of an even number the lower of the two, the upper one, or the mean of both. 0 of none. Cost: linear.
template <typename Number>
Number LowerMedian(std::vector<Number> values) {
  if (values.empty()) return 0;
  const size_t middle = (values.size() - 1) / 2;
  SelectNth(values, middle);
  return values[middle];
}

template <typename Number>
Number UpperMedian(std::vector<Number> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  SelectNth(values, middle);
  return values[middle];
}

// Leaves the values in another order.
inline double MedianInPlace(std::vector<double>& values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  SelectNth(values, middle);
  if (values.size() % 2 == 1) return values[middle];
  const double below = *std::max_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle));
  return (values[middle] + below) / 2;
}
inline double Median(std::vector<double> values) { return MedianInPlace(values); }

// The value such that this share of the sum of all lies in values at least so large. 0 of none, or if all are 0. None
// is negative. Cost: that of sorting them.
template <typename Number>
Number LargeByShareOfSum(std::vector<Number> values, double share) {
  std::sort(values.begin(), values.end(), std::greater());
  const double wanted = share * static_cast<double>(std::accumulate(values.begin(), values.end(), Number{}));
  Number up_to{};
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](Number one) { return static_cast<double>(up_to += one) >= wanted; });
  return found == values.end() ? Number{} : *found;
}

template <typename Number>
Number MiddleOfSum(std::vector<Number> values) {
  return LargeByShareOfSum(std::move(values), 0.5);
}

// The standard deviation of a median of many normally distributed values against that of their mean.
inline constexpr double kMedianSpread = 1.25;

// The standard deviation that normally distributed values would have which lie as far from `middle`: 1.4826 times the
// lower median distance. A minority that lies anywhere does not change it.
inline double RobustDeviation(std::vector<double> values, double middle) {
  for (double& value : values) value = std::abs(value - middle);
  return 1.4826 * LowerMedian(std::move(values));
}

// By how much each is above the middle of the others: of two, one is above by as much as the other is below; of one
// alone nothing is.
inline std::vector<double> AboveOthers(const std::vector<double>& values) {
  if (values.size() < 2) return std::vector<double>(values.size());
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const size_t others = values.size() - 1;
  std::vector<double> above;
  for (const double value : values) {
    const auto own = static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
    const auto other = [&](size_t place) { return sorted[place + (place >= own)]; };
    above.push_back(value - (other((others - 1) / 2) + other(others / 2)) / 2);
  }
  return above;
}

}  // namespace lockstep
