#include "lockstep/control/keepers.h"

#include <gmock/gmock.h>

#include <set>

namespace lockstep::control {
namespace {

using cluster::Dimension;
using cluster::Layout;
using testing::ElementsAre;

std::vector<NodeSpec> Nodes(int count, int ranks) {
  return std::vector<NodeSpec>(static_cast<size_t>(count), NodeSpec{"n", ranks});
}

TEST(Keepers, OneNodeHasNone) { EXPECT_THAT(KeepersOf(Nodes(1, 8), {}), ElementsAre(-1)); }

TEST(Keepers, WithoutALayoutItIsTheNeighbour) {
  EXPECT_THAT(KeepersOf(Nodes(3, 2), {}), ElementsAre(1, 2, 0));
  EXPECT_THAT(KeepersOf(Nodes(2, 4), {}), ElementsAre(1, 0));
}

TEST(Keepers, OneGroupLeavesNobodyButTheNeighbour) {
  EXPECT_THAT(KeepersOf(Nodes(4, 2), Layout{.dp = 8}), ElementsAre(1, 2, 3, 0));
}

TEST(Keepers, ALayoutOfAnotherJobSaysNothing) {
  EXPECT_THAT(KeepersOf(Nodes(3, 2), Layout{.tp = 2, .pp = 4}), ElementsAre(1, 2, 0));
}

// ByteRobust's example: TP2 PP4 DP2 on machines of 2 ranks. Machines 4 (ranks 8 and 9) and 1 (ranks 2 and 3) share no
// group, nor does any other machine of an odd distance of at least three with its keeper.
TEST(Keepers, ThePublishedExample) {
  const std::vector<int> keepers = KeepersOf(Nodes(8, 2), Layout{.tp = 2, .dp = 2, .pp = 4});
  EXPECT_THAT(keepers, testing::WhenSorted(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7)));
  for (int i = 0; i < 8; ++i) {
    const int keeper = keepers[static_cast<size_t>(i)];
    EXPECT_NE(i / 2, keeper / 2) << "the same stage: data-parallel";
    EXPECT_NE(i % 2, keeper % 2) << "the same replica: one pipeline";
  }
}

// For every layout in which some distance parts all groups, the keeper shares none; each node keeps for one other.
TEST(Keepers, ShareNoGroupWhereThatIsPossible) {
  int parted = 0;
  for (const int tp : {1, 2, 4, 8}) {
    for (const int pp : {1, 2, 3, 4, 8}) {
      for (const int dp : {1, 2, 3, 4, 8}) {
        const Layout layout{.tp = tp, .dp = dp, .pp = pp};
        const int node_ranks = 4, world = tp * pp * dp;
        if (world % node_ranks != 0 || world == node_ranks) continue;
        const std::vector<int> keepers = KeepersOf(Nodes(world / node_ranks, node_ranks), layout);
        EXPECT_EQ(keepers.size(), std::set<int>(keepers.begin(), keepers.end()).size());
        bool shares = false;
        for (int rank = 0; rank < world; ++rank) {
          const int keeper = keepers[static_cast<size_t>(rank / node_ranks)];
          EXPECT_NE(rank / node_ranks, keeper);
          for (const Dimension dimension : {Dimension::kTp, Dimension::kPp, Dimension::kDp})
            for (const RankId other : layout.Group(dimension, RankId(rank)))
              shares = shares || other.value() / node_ranks == keeper;
        }
        // With more than one stage and more than one replica on enough nodes there is one that differs in both.
        const bool has_to = tp == node_ranks && pp > 1 && dp > 1 && pp * dp > 4;
        EXPECT_FALSE(has_to && shares) << tp << " " << pp << " " << dp;
        parted += shares ? 0 : 1;
      }
    }
  }
  EXPECT_GT(parted, 10);
}

// Two stages: no distance parts all, for where the first one ends neighbours are each other's.
TEST(Keepers, ShareNoGroupInAJobOfManyNodes) {
  const int ranks = 8, replicas = 512, nodes = 2 * replicas;
  const Layout layout{.tp = ranks, .dp = replicas, .pp = 2};
  const std::vector<int> keepers = KeepersOf(Nodes(nodes, ranks), layout);
  EXPECT_EQ(std::set<int>(keepers.begin(), keepers.end()).size(), static_cast<size_t>(nodes));
  for (int node = 0; node < nodes; ++node) {
    const int keeper = keepers[static_cast<size_t>(node)];
    EXPECT_NE(node / replicas, keeper / replicas) << "the same stage";
    EXPECT_NE(node % replicas, keeper % replicas) << "the same pipeline";
  }
}

}  // namespace
}  // namespace lockstep::control
