#include "lockstep/detect/shared_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

const cluster::Layout kLayout{.tp = 2, .dp = 4, .pp = 4, .order = "tp-pp-dp"};

TEST(SharedGroup, OfOneRankIsItself) {
  const int ranks[] = {9};
  const SharedGroup group = FindSharedGroup(kLayout, ranks);
  EXPECT_EQ(group.dimensions, "");
  EXPECT_THAT(group.ranks, ElementsAre(9));
}

// rank = tp + 2 (pp + 4 dp)
TEST(SharedGroup, SpansTheDimensionsInWhichRanksDiffer) {
  const int pipeline[] = {24, 28}, machine[] = {30, 31}, both[] = {24, 31}, replicas[] = {1, 25};
  EXPECT_EQ(FindSharedGroup(kLayout, pipeline).dimensions, "pp");
  EXPECT_THAT(FindSharedGroup(kLayout, pipeline).ranks, ElementsAre(24, 26, 28, 30));
  EXPECT_EQ(FindSharedGroup(kLayout, machine).dimensions, "tp");
  EXPECT_THAT(FindSharedGroup(kLayout, machine).ranks, ElementsAre(30, 31));
  EXPECT_EQ(FindSharedGroup(kLayout, both).dimensions, "tp+pp");
  EXPECT_THAT(FindSharedGroup(kLayout, both).ranks, ElementsAre(24, 25, 26, 27, 28, 29, 30, 31));
  EXPECT_EQ(FindSharedGroup(kLayout, replicas).dimensions, "dp");
  EXPECT_THAT(FindSharedGroup(kLayout, replicas).ranks, ElementsAre(1, 9, 17, 25));
}

TEST(SharedGroup, ExpertsSplitTheDataParallelGroup) {
  const cluster::Layout layout{.tp = 1, .ep = 2, .dp = 4};  // rank = ep + 2 expert_dp
  const int experts[] = {2, 3}, replicas[] = {1, 3}, both[] = {0, 3};
  EXPECT_EQ(FindSharedGroup(layout, experts).dimensions, "ep");
  EXPECT_THAT(FindSharedGroup(layout, experts).ranks, ElementsAre(2, 3));
  EXPECT_EQ(FindSharedGroup(layout, replicas).dimensions, "expert_dp");
  EXPECT_THAT(FindSharedGroup(layout, replicas).ranks, ElementsAre(1, 3));
  EXPECT_EQ(FindSharedGroup(layout, both).dimensions, "dp");
  EXPECT_THAT(FindSharedGroup(layout, both).ranks, ElementsAre(0, 1, 2, 3));
}

// It is the union of the groups that cluster::Layout itself has.
TEST(SharedGroup, IsAGroupOfTheLayout) {
  for (const cluster::Dimension dimension : {cluster::Dimension::kTp, cluster::Dimension::kDp, cluster::Dimension::kPp})
    for (const std::vector<RankId>& group : kLayout.Groups(dimension)) {
      std::vector<int> ranks;
      for (const RankId rank : group) ranks.push_back(rank.value());
      EXPECT_THAT(FindSharedGroup(kLayout, ranks).ranks, ElementsAreArray(ranks));
      EXPECT_EQ(FindSharedGroup(kLayout, ranks).dimensions, cluster::DimensionName(dimension));
    }
}

}  // namespace
}  // namespace lockstep::detect
