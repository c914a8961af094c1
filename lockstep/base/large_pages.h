// Large arrays on large pages: they are there sooner, and scattered accesses find their pages faster.
#pragma once

#include <cstddef>
#include <vector>

namespace lockstep {

// Asks for large pages in [begin, begin + bytes), which nobody has touched yet. Where there are none it does nothing.
void AdviseLargePages(void* begin, size_t bytes);

// Instead of reserve, assign and =.
template <typename Value>
void ReserveOnLargePages(std::vector<Value>& values, size_t count) {
  values.reserve(count);
  AdviseLargePages(values.data(), count * sizeof(Value));
}
template <typename Value>
void FillOnLargePages(std::vector<Value>& values, size_t count, Value value) {
  ReserveOnLargePages(values, count);
  values.assign(count, value);
}
template <typename Value>
void CopyOnLargePages(const std::vector<Value>& from, std::vector<Value>& to) {
  ReserveOnLargePages(to, from.size());
  to = from;
}

}  // namespace lockstep
