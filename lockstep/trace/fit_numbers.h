// Which ops rows are of that were counted anew after others had been lost: in the order of the ops, and where their
// times fit best.
//
//   NumbersByEnds({1.3, 1.4}, {1.1, 1.2, 1.3, 1.4}, {}).numbers;            // {2, 3}: the clocks agree
//   NumbersByEnds({1.3, 1.4}, {1.1, 1.2, 1.3, 1.4}, {0.2, 0.2}).numbers;    // {0, 1}: the own is 0.2 s ahead
//   NumbersByEnds({1.3, 1.4}, {1.1, 1.2, 1.3, 1.4}, {0.15, 0.15}).doubtful; // {0, 1}: {1, 2} fit as well
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::trace {

using Numbers = std::vector<uint32_t>;  // of each row the op, ascending

inline constexpr size_t kMostCells = 1 << 24;  // rows times those that are lacking, which a look takes

// Rows that begin at the moments `own`, of ops that are expected to begin at `expected`, which vary. Nothing where more
// than half of the distance that they have as they are numbered is left.
std::optional<Numbers> NumbersByStarts(const std::vector<float>& own, const std::vector<float>& expected);

// How much later one clock is than another; s.
struct Later {
  float least = 0, most = 0;
  float unsure = 0;  // it may be so far outside as well
};

struct NumberedByEnds {
  Numbers numbers;
  std::vector<uint32_t> doubtful;  // rows, of a worker whose rows stay as they are numbered: they may be other ops'
  Later clock;                     // by the answers that fit about equally
};

// Rows of collectives that end at `own`, of ops that end in their group at `group`. How much later they end by the own
// clock is one number. Ends that come at intervals of their own tell it; where they don't, as of collectives that take
// as long as each other, `told` decides. Where two answers fit about equally the numbers stay.
NumberedByEnds NumbersByEnds(const std::vector<float>& own, const std::vector<float>& group, Later told);

}  // namespace lockstep::trace
