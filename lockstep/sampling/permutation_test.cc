#include "lockstep/sampling/permutation.h"

#include <gtest/gtest.h>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

void ExpectBijection(const Permutation& order) {
  std::vector<bool> seen(order.size());
  for (uint64_t i = 0; i < order.size(); ++i) {
    const uint64_t value = order.At(i);
    ASSERT_LT(value, order.size());
    ASSERT_FALSE(seen[value]) << value;
    seen[value] = true;
    ASSERT_EQ(order.IndexOf(value), i);
  }
}

TEST(Permutation, IsABijectionOfAnySize) {
  for (const uint64_t size : {1U, 2U, 3U, 7U, 10U, 64U, 97U, 1000U, 65536U, 65537U, 99991U}) {
    ExpectBijection(Permutation(size, size));
    ExpectBijection(Permutation(size, size, 0));
  }
}

TEST(Permutation, OfABillionNeedsNoTable) {
  const Permutation order(1'000'000'000, 3);
  for (uint64_t i = 0; i < order.size(); i += 9'999'991) {
    const uint64_t value = order.At(i);
    ASSERT_LT(value, order.size());
    ASSERT_EQ(order.IndexOf(value), i);
  }
}

// Orders of few items, by tables and by the network: places × items, pairs, one key against the next.
void ExpectUniform(uint64_t size, uint64_t table_limit, int runs) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    OrderCounts counts(size);
    for (int run = 0; run < runs; ++run) {
      std::vector<uint32_t> orders[2];
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        const Permutation order(size, Hash(seed, static_cast<uint64_t>(2 * run) + epoch), table_limit);
        for (uint64_t i = 0; i < size; ++i) orders[epoch].push_back(static_cast<uint32_t>(order.At(i)));
      }
      counts.Add(orders[0], orders[1]);
    }
    EXPECT_GT(counts.PlaceChance(), 0.001) << size << " seed " << seed;
    EXPECT_GT(counts.PairChance(), 0.001) << size << " seed " << seed;
    EXPECT_GT(counts.EpochChance(), 0.001) << size << " seed " << seed;
  }
}

TEST(Permutation, TablesAreUniform) {
  ExpectUniform(6, Permutation::kTableLimit, 5000);
  ExpectUniform(30, Permutation::kTableLimit, 5000);
}

TEST(Permutation, TheNetworkIsUniformAlreadyForSmallSizes) {
  ExpectUniform(17, 0, 4000);
  ExpectUniform(30, 0, 5000);
}

// All 24 orders of four items come equally often.
TEST(Permutation, EveryOrderOfFourHasTheSameChance) {
  std::map<std::vector<uint64_t>, int> seen;
  constexpr int kRuns = 24000;
  for (uint64_t run = 0; run < kRuns; ++run) {
    const Permutation order(4, Hash(5, run));
    ++seen[{order.At(0), order.At(1), order.At(2), order.At(3)}];
  }
  ASSERT_EQ(seen.size(), 24U);
  double statistic = 0;
  for (const auto& [order, count] : seen) statistic += (count - 1000.0) * (count - 1000.0) / 1000;
  EXPECT_GT(ChiSquareTail(statistic, 23), 0.001);
}

// In a large network, where blocks of places go and which blocks follow each other.
TEST(Permutation, OfAMillionSpreadsBlocksEvenly) {
  constexpr uint64_t kSize = 1'000'003, kBlocks = 64;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Permutation order(kSize, Hash(seed, 9));
    std::vector<double> counts(kBlocks * kBlocks), pairs(kBlocks * kBlocks);
    uint64_t last = 0;
    for (uint64_t i = 0; i < kSize; ++i) {
      const uint64_t block = order.At(i) * kBlocks / kSize;
      ++counts[i * kBlocks / kSize * kBlocks + block];
      if (i % 2 == 1) ++pairs[last * kBlocks + block];
      last = block;
    }
    const auto chance = [](const std::vector<double>& cells, double total, double freedom) {
      const double expected = total / static_cast<double>(kBlocks * kBlocks);
      double statistic = 0;
      for (const double count : cells) statistic += (count - expected) * (count - expected) / expected;
      return ChiSquareTail(statistic, freedom);
    };
    EXPECT_GT(chance(counts, kSize, (kBlocks - 1) * (kBlocks - 1)), 0.001) << seed;
    EXPECT_GT(chance(pairs, kSize / 2, kBlocks * kBlocks - 1), 0.001) << seed;
  }
}

}  // namespace
}  // namespace lockstep::sampling
