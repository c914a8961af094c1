#include "lockstep/history/lemon.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::history {
namespace {

// Nodes of unequal hours in jobs, each named at the same rate an hour, but for one.
std::vector<NodeRecord> Cluster(std::mt19937_64& seeded, int nodes, double per_hour, double worse = 1) {
  std::uniform_real_distribution<double> hours(1, 672);
  std::vector<NodeRecord> records;
  for (int i = 0; i < nodes; ++i) {
    NodeRecord record{fmt::format("n{}", i), hours(seeded), 0};
    if (i == 0) record.hours = 336;
    std::poisson_distribution<int64_t> named(per_hour * record.hours * (i == 0 ? worse : 1));
    record.named = named(seeded);
    records.push_back(std::move(record));
  }
  return records;
}

// Rule: P(Binomial(C, h / H) >= named) <= 0.01 / nodes. By hand: 10 of 10 namings on one of two equal nodes has chance
// 1/1024, below 0.005; 8 of 8 has 1/256, below 0.005; 7 of 7 has 1/128, which is not.
TEST(Lemons, ByHand) {
  EXPECT_EQ(FindLemons({{"a", 5, 7}, {"b", 5, 0}}, 0.01).size(), 0u);
  const std::vector<Lemon> found = FindLemons({{"a", 5, 0}, {"b", 5, 8}}, 0.01);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].record.node, "b");
  EXPECT_NEAR(found[0].chance, 1 / 256.0, 1e-12);
  EXPECT_DOUBLE_EQ(found[0].expected, 4);
}

TEST(Lemons, NoneWithoutPeersOrHours) {
  EXPECT_TRUE(FindLemons({}, 0.01).empty());
  EXPECT_TRUE(FindLemons({{"alone", 600, 50}}, 0.01).empty());
  EXPECT_TRUE(FindLemons({{"a", 0, 3}, {"b", 0, 0}}, 0.01).empty());
}

// Of 4,500 clusters whose nodes are all alike, at most 1 % have a node blamed (and not none: the rule is no wall).
TEST(Lemons, FalsePositivesKeepTheirRate) {
  std::mt19937_64 seeded(11);
  int blamed = 0, rounds = 0;
  for (const double per_hour : {1e-4, 1e-3, 1e-2}) {
    for (int round = 0; round < 1500; ++round, ++rounds)
      blamed += !FindLemons(Cluster(seeded, 100, per_hour), 0.01).empty();
  }
  EXPECT_LE(blamed, rounds * 0.01);
  EXPECT_GT(blamed, 0);
}

// The node n0, in jobs for half of the 672 h, is named about 10 times where its peers are named once in three: it is
// found in 19 of 20 such clusters, first, and hardly ever is anybody else.
TEST(Lemons, APlantedOneIsFound) {
  std::mt19937_64 seeded(12);
  int found = 0, others = 0;
  for (int round = 0; round < 500; ++round) {
    const std::vector<Lemon> lemons = FindLemons(Cluster(seeded, 200, 1e-3, 30), 0.01);
    found += !lemons.empty() && lemons.front().record.node == "n0";
    others += lemons.size() > 1;
  }
  EXPECT_GE(found, 475);
  EXPECT_LE(others, 5);
}

}  // namespace
}  // namespace lockstep::history
