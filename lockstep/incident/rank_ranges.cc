#include "lockstep/incident/rank_ranges.h"

#include <fmt/format.h>

namespace lockstep::incident {

std::string RangesText(std::span<const int> ranks) {
  constexpr size_t kMost = 24;  // ranges
  std::string text;
  size_t ranges = 0;
  for (size_t i = 0; i < ranks.size(); ++ranges) {
    if (ranges == kMost) return fmt::format("{} and {} more", text, ranks.size() - i);
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string RanksAsRanges(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", RangesText(ranks));
}

}  // namespace lockstep::incident
