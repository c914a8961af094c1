#include "lockstep/trace/counter.h"

#include <algorithm>

namespace lockstep::trace {

void Count(std::vector<Counter>& counters, std::string_view name, uint64_t count) {
  if (count == 0) return;
  const auto same =
      std::find_if(counters.begin(), counters.end(), [&](const Counter& one) { return one.name == name; });
  same == counters.end() ? counters.push_back({std::string(name), count}) : void(same->count += count);
}

}  // namespace lockstep::trace
