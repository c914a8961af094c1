// Ranks as a person reads them: "0-11, 13".
#pragma once

#include <span>
#include <string>

namespace lockstep::incident {

// Of ascending ranks; of many ranges the first.
std::string RangesText(std::span<const int> ranks);
// "rank 3", "ranks 0-11, 13".
std::string RanksAsRanges(std::span<const int> ranks);

}  // namespace lockstep::incident
