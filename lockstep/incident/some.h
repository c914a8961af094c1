// Of observations that are as many as a job has ranks, the first few: the suspects are told whole, what is seen of each
// is not.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::incident {

inline constexpr size_t kSome = 8;  // the ranks of a node

// `tell` adds what is seen of an item to `lines`; of the rest only how many there are: "... and 504 more ranks".
template <typename Items, typename Tell>
void TellSome(const Items& items, const char* what, std::vector<std::string>& lines, Tell tell) {
  size_t told = 0;
  for (const auto& item : items) {
    if (told == kSome) break;
    tell(item);
    ++told;
  }
  if (items.size() > told) lines.push_back(fmt::format("... and {} more {}", items.size() - told, what));
}

}  // namespace lockstep::incident
