#include "lockstep/trace/clocks.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::trace {
namespace {

TEST(FitClocks, FindsOffsetsThroughGroupsThatOverlap) {
  const std::vector<int64_t> off = {0, 3'000'000, -7'000'000, 250'000, 1'000, 0};
  std::mt19937 chance(1);
  std::vector<std::vector<std::pair<size_t, int64_t>>> ends;
  const auto add = [&](const std::vector<size_t>& ranks, int64_t end) {
    auto& members = ends.emplace_back();
    for (const size_t rank : ranks) members.emplace_back(rank, end + off[rank] + static_cast<int64_t>(chance() % 2000));
  };
  for (int64_t i = 0; i < 50; ++i) {
    add({0, 1, 2}, 1'750'000'000'000'000'000 + i * 1'000'000'000);
    add({2, 3, 4}, 1'750'000'000'500'000'000 + i * 1'000'000'000);
  }
  const std::vector<ClockOffset> clocks = FitClocks(off.size(), ends);
  for (size_t rank = 1; rank < 5; ++rank) {
    EXPECT_NEAR(clocks[rank].offset_ns - clocks[0].offset_ns, static_cast<double>(-off[rank]), 3000) << rank;
    EXPECT_LT(clocks[rank].error_ns, 2000);
  }
}

TEST(FitClocks, WithoutCommonEndsClocksStay) {
  for (const ClockOffset& clock : FitClocks(3, {{{1, 12345}}})) EXPECT_EQ(clock.offset_ns, 0);
}

}  // namespace
}  // namespace lockstep::trace
