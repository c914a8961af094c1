// Clocks of ranks against each other, from communications that end on all their members together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::trace {

struct ClockOffset {
  double offset_ns = 0;  // to be added to the rank's times, at `around_ns`
  double drift = 0;      // and so much more for each ns since then
  int64_t around_ns = 0;
  double At(int64_t ns) const { return offset_ns + drift * static_cast<double>(ns - around_ns); }
  double error_ns = 0;  // how far the ends that it was fitted to lie from each other, robustly (1.4826 * median)
};

// ends[i] has (rank, end in ns) of the members of one communication. Ranks that none has keep their clocks. The
// offsets' median is 0.
std::vector<ClockOffset> FitClocks(size_t ranks, const std::vector<std::vector<std::pair<size_t, int64_t>>>& ends);

// Clocks that drift from each other, if that explains more than half of what the offsets leave; else as they are given.
std::vector<ClockOffset> FitDrifts(std::vector<ClockOffset> clocks,
                                   const std::vector<std::vector<std::pair<size_t, int64_t>>>& ends);

}  // namespace lockstep::trace
