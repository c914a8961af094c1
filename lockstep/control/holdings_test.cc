#include "lockstep/control/holdings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace lockstep::control {
namespace {

constexpr EpochId kOne{1}, kTwo{2};

bool Has(const std::vector<CheckpointId>& points, const CheckpointId& point) {
  return std::find(points.begin(), points.end(), point) != points.end();
}

// What news is, by a look at all nodes: whole is what all hold; dead is what some node has passed and does not have,
// and all up to the first checkpoint that is not.
Commit ByALookAtAll(const std::vector<Holding>& nodes, Commit commit) {
  std::set<CheckpointId> told;
  int64_t passed = -1;
  for (const Holding& node : nodes) {
    told.insert(node.points.begin(), node.points.end());
    told.insert(node.coming.begin(), node.coming.end());
    passed = std::max(passed, node.passed);
  }
  for (const CheckpointId& point : told) {
    const bool whole = std::ranges::all_of(nodes, [&](const Holding& node) { return Has(node.points, point); });
    if (whole && point.epoch == commit.epoch) commit.point = std::max(commit.point, point);
  }
  int64_t dead = passed;
  for (const CheckpointId& point : told) {
    if (point.epoch != commit.epoch || point <= commit.point || point.step > passed) continue;
    const bool lives = std::ranges::none_of(nodes, [&](const Holding& node) {
      return node.passed >= point.step && !Has(node.points, point) && !Has(node.coming, point);
    });
    if (!lives) continue;
    dead = point.step - 1;
    break;
  }
  commit.dead_step = std::max(commit.dead_step, dead);
  return commit;
}

TEST(Holdings, AreAsALookAtAllNodesTells) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t limit) { return random() % limit; };
    const auto some = [&] { return CheckpointId{below(4) == 0 ? kOne : kTwo, static_cast<int64_t>(below(6))}; };
    std::vector<Holding> nodes(1 + below(4));
    Holdings holdings(nodes.size());
    holdings.Begin(kTwo);
    Commit commit = holdings.commit();
    int news = 0;
    for (int word = 0; word < 300; ++word) {
      Holding said{kTwo, {}, {}, static_cast<int64_t>(below(8)) - 1};
      for (uint64_t i = below(4); i > 0; --i) said.points.push_back(some());  // now and then one twice
      for (uint64_t i = below(3); i > 0; --i) said.coming.push_back(some());
      const size_t node = below(nodes.size());
      nodes[node] = said;
      const bool whole = holdings.Set(node, said);
      const Commit expected = ByALookAtAll(nodes, commit);
      if (expected.point != commit.point) {
        EXPECT_TRUE(whole) << seed;
      }
      const std::optional<Commit> told = holdings.News();
      EXPECT_EQ(told.has_value(), expected != commit) << seed;
      EXPECT_EQ(holdings.commit(), expected) << seed;
      news += told ? 1 : 0;
      commit = expected;
    }
    EXPECT_GT(news, 0) << seed;
  }
}

TEST(Holdings, TellWhenTheLastNodeHasACheckpoint) {
  Holdings holdings(2);
  holdings.Begin(kTwo);
  EXPECT_FALSE(holdings.Set(0, {kTwo, {{kTwo, 4}}, {}, 4}));
  EXPECT_TRUE(holdings.Set(1, {kTwo, {{kTwo, 4}}, {}, 4}));
  EXPECT_EQ(holdings.News()->point, (CheckpointId{kTwo, 4}));
  EXPECT_FALSE(holdings.Set(1, {kTwo, {{kTwo, 4}}, {}, 5})) << "said again";
  holdings.Begin(EpochId(3));
  EXPECT_EQ(holdings.commit(), (Commit{EpochId(3), {}, -1})) << "nothing is known of the new epoch";
}

}  // namespace
}  // namespace lockstep::control
