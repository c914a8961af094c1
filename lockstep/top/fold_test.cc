#include "lockstep/top/fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

namespace lockstep::top {
namespace {

using ::testing::ElementsAre;

// Ranks 0 to count - 1 at step 10, each a little slower than the one before, eight to a node.
Json Ranks(int count) {
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank)
    ranks.push_back({{"rank", rank},
                     {"node", "n" + std::to_string(rank / 8)},
                     {"state", "running"},
                     {"step", 10},
                     {"step_time_s", 0.1 + 1e-6 * rank}});
  return ranks;
}

std::vector<int> AllOf(const std::vector<Row>& rows) {
  std::vector<int> all;
  for (const Row& row : rows) all.insert(all.end(), row.ranks.begin(), row.ranks.end());
  std::sort(all.begin(), all.end());
  return all;
}

TEST(WorstFirst, IsWhoDoesNotRunThenWhoIsBehindThenWhoIsSlow) {
  Json ranks = Ranks(5);
  ranks[1]["step"] = 9;
  ranks[3]["state"] = "stopped";
  EXPECT_THAT(WorstFirst(ranks), ElementsAre(3, 1, 4, 2, 0));
}

TEST(Fold, FewRanksStandInTheirOrder) {
  const std::vector<Row> rows = Fold(Ranks(3), ByNode(Ranks(3)), 3);
  ASSERT_EQ(rows.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(rows[static_cast<size_t>(rank)].ranks, ElementsAre(rank));
}

TEST(Fold, EveryRankIsInOneRowWhateverTheRoom) {
  for (const int count : {1, 7, 8, 9, 64, 4096}) {
    std::vector<int> expected(static_cast<size_t>(count));
    std::iota(expected.begin(), expected.end(), 0);
    for (const size_t room : {1u, 2u, 3u, 10u, 20u, 100u}) {
      const std::vector<Row> rows = Fold(Ranks(count), ByNode(Ranks(count)), room);
      EXPECT_LE(rows.size(), room) << count;
      EXPECT_EQ(AllOf(rows), expected) << count << " ranks, room " << room;
    }
  }
}

TEST(Fold, TheWorstRankIsTheFirstRow) {
  Json ranks = Ranks(4096);
  ranks[1234]["state"] = "frozen";
  const std::vector<Row> rows = Fold(ranks, ByNode(ranks), 20);
  EXPECT_THAT(rows.front().ranks, ElementsAre(1234));
  EXPECT_EQ(rows.back().name, "502 others");
}

TEST(ByNode, TheLastNodeMayBeSmaller) {
  const Folding folding = ByNode(Ranks(10));
  ASSERT_EQ(folding.groups.size(), 2u);
  EXPECT_EQ(folding.groups[1].name, "node n1");
  EXPECT_THAT(folding.groups[1].ranks, ElementsAre(8, 9));
}

TEST(ByNode, OneNodeNeedsNoName) {
  const Folding folding = ByNode({{{"rank", 0}}, {{"rank", 1}}});
  ASSERT_EQ(folding.groups.size(), 1u);
  EXPECT_EQ(folding.groups[0].name, "this node");
}

TEST(ByPlace, IsTheLayouts) {
  const cluster::Layout layout{.tp = 2, .dp = 2, .pp = 2};
  const Folding folding = ByPlace(layout, cluster::Dimension::kPp);
  ASSERT_EQ(folding.groups.size(), 2u);
  EXPECT_EQ(folding.groups[1].name, "pp 1");
  EXPECT_THAT(folding.groups[1].ranks, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(ByPlace(layout, cluster::Dimension::kTp).groups[0].ranks, ElementsAre(0, 2, 4, 6));
}

}  // namespace
}  // namespace lockstep::top
