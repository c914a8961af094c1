#include "lockstep/feed/split.h"

#include <gtest/gtest.h>

namespace lockstep::feed {
namespace {

constexpr uint64_t kItems = 1000, kFile = 60'000, kPixels = 560'000;
constexpr Splitter::Machine kHalf{.threads = 2, .items = kItems, .budget = kItems * kPixels / 2};

// So many of each kind of work, one of which takes so many microseconds.
Costs After(uint64_t count, int64_t read_us, int64_t decode_us = 430, int64_t cut_us = 65) {
  const auto work = [&](int64_t us, uint64_t bytes) {
    return Work{count, us * 1000 * static_cast<int64_t>(count), bytes * count};
  };
  return {.reads = work(read_us, kFile),
          .decodes = work(decode_us, kPixels),
          .parts = work(decode_us + cut_us, kPixels),
          .cuts = work(cut_us, 0)};
}

// Per byte of cache, pixels save (16 + 430) / 560,000 us and files 16 / 60,000: rate = 2 / (0.5 · 511 + 0.5 · 65) us.
TEST(Split, PixelsFirstWhereReadsCostLittle) {
  Splitter splitter;
  const auto quotas = splitter.Solve(After(100, 16), kHalf);
  ASSERT_TRUE(quotas);
  EXPECT_NEAR(static_cast<double>(quotas->decoded), static_cast<double>(kHalf.budget), 1e3);
  EXPECT_EQ(quotas->encoded, 0U);
  EXPECT_NEAR(splitter.split().rate, 2 / 288e-6, 1);
}

// A read of 5 ms: all files, and pixels in what is left: 0.5·N·P = d·P + (1 - d)·F, d = 0.44.
TEST(Split, FilesFirstWhereReadsCostMuch) {
  Splitter splitter;
  const auto quotas = splitter.Solve(After(100, 5000), kHalf);
  ASSERT_TRUE(quotas);
  EXPECT_NEAR(static_cast<double>(quotas->decoded) / kPixels, 440, 1);
  EXPECT_NEAR(static_cast<double>(quotas->encoded) / kFile, 560, 1);
}

TEST(Split, AllPixelsWhereTheyFit) {
  Splitter splitter;
  Splitter::Machine machine = kHalf;
  machine.budget = kItems * kPixels + 1;
  const auto quotas = splitter.Solve(After(100, 5000), machine);
  ASSERT_TRUE(quotas);
  EXPECT_EQ(quotas->decoded, machine.budget);
  EXPECT_EQ(quotas->encoded, 0U);
}

// Four jobs in step: a read and a decode for four cuts. Half of the pixels are kept, then, and half as much is decoded,
// which is not more sharing.
TEST(Split, WhatJobsShareCostsEachAPartOfIt) {
  Splitter splitter;
  Splitter::Machine machine = kHalf;
  machine.jobs = 4;
  Costs costs = After(100, 16);
  costs.parts = {};
  costs.cuts = After(400, 16).cuts;
  ASSERT_TRUE(splitter.Solve(costs, machine));
  EXPECT_NEAR(splitter.split().rate, 2 / (0.5 * 446e-6 / 4 + 65e-6), 1);
  costs.decodes = After(150, 16).decodes;
  costs.cuts = After(800, 16).cuts;
  EXPECT_FALSE(splitter.Solve(costs, machine));
  EXPECT_NEAR(splitter.split().rate, 2 / (0.5 * 446e-6 / 4 + 65e-6), 1);
  machine.jobs = 1;  // three have gone: what is in force gives one so much
  EXPECT_FALSE(splitter.Solve(costs, machine));
  EXPECT_NEAR(splitter.split().rate, 2 / (0.5 * 446e-6 + 65e-6), 1);
}

TEST(Split, NothingIsSaidBeforeAnythingWasMeasured) {
  Splitter splitter;
  EXPECT_FALSE(splitter.Solve({}, kHalf));
  EXPECT_FALSE(splitter.Solve(After(3, 16), kHalf));
  EXPECT_EQ(splitter.split().rate, 0);
}

TEST(Split, ChangesWithTheTimesAndTheJobsAndNotForNothing) {
  Splitter splitter;
  ASSERT_TRUE(splitter.Solve(After(100, 16), kHalf));
  EXPECT_FALSE(splitter.Solve(After(200, 16), kHalf));
  Costs slower = After(300, 16);
  slower.reads.ns += 100 * 5'000'000LL;  // the last hundred took 5 ms each
  const auto files_first = splitter.Solve(slower, kHalf);
  ASSERT_TRUE(files_first);
  EXPECT_GT(files_first->encoded, 0U);
  Splitter::Machine few = kHalf;
  few.items = kItems / 2;  // now all pixels fit
  const auto all = splitter.Solve(slower, few);
  ASSERT_TRUE(all);
  EXPECT_EQ(all->encoded, 0U);
}

}  // namespace
}  // namespace lockstep::feed
