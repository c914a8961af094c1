// The middle of some values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace lockstep {

// Of an even number the lower of the two. 0 of none. Cost: linear.
template <typename Number>
Number LowerMedian(std::vector<Number> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace lockstep
