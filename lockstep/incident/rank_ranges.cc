#include "lockstep/incident/rank_ranges.h"

#include <fmt/format.h>

#include "lockstep/base/ranges.h"

namespace lockstep::incident {

std::string RangesText(std::span<const int> ranks) { return lockstep::RangesText(ranks, {.least = 2, .most = 24}); }

std::string RanksAsRanges(std::span<const int> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", RangesText(ranks));
}

}  // namespace lockstep::incident
