#include "lockstep/trace/clocks.h"

#include <gtest/gtest.h>

#include <cmath>
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

// Stages of a pipeline reduce often each among themselves, and all ranks meet now and then.
TEST(FitClocks, ARareMeetingOfAllTiesGroupsTogether) {
  const auto off = [](size_t rank) { return static_cast<int64_t>(rank * rank % 7) * 100'000'000; };
  std::vector<std::vector<std::pair<size_t, int64_t>>> ends;
  const auto add = [&](size_t begin, size_t end, int64_t at) {
    auto& members = ends.emplace_back();
    for (size_t rank = begin; rank < end; ++rank) members.emplace_back(rank, at + off(rank));
  };
  for (int64_t i = 1; i <= 50; ++i) {
    for (size_t stage = 0; stage < 4; ++stage) add(4 * stage, 4 * stage + 4, i * 1'000'000'000);
    if (i % 10 == 0) add(0, 16, i * 1'000'000'000 + 1000);
  }
  const std::vector<ClockOffset> clocks = FitClocks(16, ends);
  for (size_t rank = 1; rank < 16; ++rank)
    EXPECT_NEAR(clocks[rank].offset_ns - clocks[0].offset_ns, static_cast<double>(-off(rank)), 1);
}

// In each of ten steps of a second, four ranks meet four times.
std::vector<std::vector<std::pair<size_t, int64_t>>> EndsOf(const std::vector<double>& drifts) {
  std::mt19937 chance(1);
  std::vector<std::vector<std::pair<size_t, int64_t>>> ends;
  for (int64_t i = 0; i < 40; ++i) {
    auto& members = ends.emplace_back();
    const int64_t at = i * 250'000'000;
    for (size_t rank = 0; rank < drifts.size(); ++rank)
      members.emplace_back(rank, 1'750'000'000'000'000'000 + at + std::llround(drifts[rank] * double(at)) +
                                     static_cast<int64_t>(chance() % 4000));
  }
  return ends;
}

TEST(FitClocks, FindsDrifts) {
  const std::vector<double> drifts = {0, 50e-6, -20e-6, 5e-6};
  const auto ends = EndsOf(drifts);
  const std::vector<ClockOffset> still = FitClocks(drifts.size(), ends), clocks = FitDrifts(still, ends);
  EXPECT_GT(still[1].error_ns, 100'000);
  for (size_t rank = 0; rank < drifts.size(); ++rank) {
    EXPECT_NEAR(clocks[rank].drift - clocks[0].drift, drifts[0] - drifts[rank], 0.5e-6) << rank;
    EXPECT_LT(clocks[rank].error_ns, 2000) << rank;
  }
}

TEST(FitClocks, WhatVariesByChanceIsNoDrift) {
  const auto ends = EndsOf({0, 0, 0, 0});
  for (const ClockOffset& clock : FitDrifts(FitClocks(4, ends), ends)) EXPECT_EQ(clock.drift, 0);
}

TEST(FitClocks, WithoutCommonEndsClocksStay) {
  for (const ClockOffset& clock : FitClocks(3, {{{1, 12345}}})) EXPECT_EQ(clock.offset_ns, 0);
}

}  // namespace
}  // namespace lockstep::trace
