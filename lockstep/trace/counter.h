// What was mended in a trace, or left out, by name; never silent.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::trace {

struct Counter {
  std::string name;
  uint64_t count;
};
// Adds to the counter of that name, which is made unless there is nothing to say.
void Count(std::vector<Counter>& counters, std::string_view name, uint64_t count);

}  // namespace lockstep::trace
