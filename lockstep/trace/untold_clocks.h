// Clocks of workers of which nothing tells: their rows of communications are all in doubt, in each step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "lockstep/trace/row_numbers.h"

namespace lockstep::trace {

struct UntoldClocks {
  std::vector<std::pair<int, int>> workers;         // dp, stage
  std::vector<std::pair<StragglerRow*, float>> as;  // their rows, with the starts that they were read with
};

// Has each such worker begin its steps when most of its stage's other ranks do, as far as its clock may be off so much:
// it is neither late nor early then, which nobody can know. `in_doubt`: [op * lanes + lane] = 1: the row is one of
// `doubtful`.
UntoldClocks BeginWithOthers(const NumberedRows& numbered, const std::vector<DoubtfulRow>& doubtful,
                             const std::vector<uint8_t>& in_doubt);

}  // namespace lockstep::trace
