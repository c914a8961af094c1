#include "lockstep/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::trace {
namespace {

// Enough for offsets to settle where groups overlap only in part.
constexpr int kRounds = 8;

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return values.size() % 2 == 1 ? *middle : (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

std::vector<ClockOffset> FitClocks(size_t ranks, const std::vector<std::vector<std::pair<size_t, int64_t>>>& ends) {
  std::vector<ClockOffset> clocks(ranks);
  for (int round = 0; round <= kRounds; ++round) {
    std::vector<std::vector<double>> late(ranks);  // behind the others of the same communication
    for (const auto& members : ends) {
      if (members.size() < 2) continue;
      const int64_t origin = members.front().second;  // differences are small, times since an epoch are not
      std::vector<double> relative;
      relative.reserve(members.size());
      for (const auto& [rank, end] : members)
        relative.push_back(static_cast<double>(end - origin) + clocks[rank].offset_ns);
      std::vector<double> sorted = relative;
      const double middle = Median(sorted);
      for (size_t i = 0; i < members.size(); ++i) late[members[i].first].push_back(relative[i] - middle);
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (late[rank].empty()) continue;
      if (round < kRounds) {
        clocks[rank].offset_ns -= Median(late[rank]);
        continue;
      }
      for (double& one : late[rank]) one = std::abs(one);
      clocks[rank].error_ns = 1.4826 * Median(late[rank]);
    }
  }
  std::vector<double> offsets;
  offsets.reserve(clocks.size());
  for (const ClockOffset& clock : clocks) offsets.push_back(clock.offset_ns);
  if (offsets.empty()) return clocks;
  const double middle = Median(offsets);
  for (ClockOffset& clock : clocks) clock.offset_ns -= middle;
  return clocks;
}

}  // namespace lockstep::trace
