// Large arrays on large pages: they are there sooner, and scattered accesses find their pages faster.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

// Asks for large pages in [begin, begin + bytes), which nobody has touched yet. Where there are none it does nothing.
void AdviseLargePages(void* begin, size_t bytes);

// Instead of reserve.
template <typename Value>
void ReserveOnLargePages(std::vector<Value>& values, size_t count) {
  values.reserve(count);
  AdviseLargePages(values.data(), count * sizeof(Value));
}

}  // namespace lockstep
