#include "lockstep/cluster/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::cluster {
namespace {

using testing::ElementsAre;

std::vector<int> Values(const std::vector<RankId>& ranks) {
  std::vector<int> values;
  values.reserve(ranks.size());
  for (const RankId rank : ranks) values.push_back(rank.value());
  return values;
}

// Random valid layouts of up to 5^4 ranks, in any order that Validate accepts.
std::vector<Layout> SomeLayouts() {
  std::mt19937 random(20240607);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const std::string orders[] = {"tp-cp-ep-dp-pp", "tp-cp-dp-ep-pp", "tp-pp-ep-dp-cp", "pp-dp-ep-tp-cp",
                                "ep-dp-tp-cp-pp"};
  std::vector<Layout> layouts;
  for (int i = 0; i < 200; ++i) {
    const int ep = 1 + below(3);
    Layout layout{.tp = 1 + below(4), .cp = 1 + below(3), .ep = ep, .dp = ep * (1 + below(3)), .pp = 1 + below(4)};
    layout.order = orders[below(5)];
    layouts.push_back(layout);
  }
  return layouts;
}

TEST(Layout, RanksAndCoordinatesAreABijection) {
  for (const Layout& layout : SomeLayouts()) {
    ASSERT_TRUE(layout.Validate().ok()) << layout.Validate();
    std::set<Coordinates> seen;
    for (int rank = 0; rank < layout.WorldSize(); ++rank) {
      const Coordinates at = layout.CoordinatesOf(RankId(rank));
      ASSERT_TRUE(at.tp < layout.tp && at.cp < layout.cp && at.dp < layout.dp && at.pp < layout.pp);
      ASSERT_EQ(layout.Rank(at), RankId(rank));
      seen.insert(at);
    }
    ASSERT_EQ(seen.size(), static_cast<size_t>(layout.WorldSize()));
  }
}

TEST(Layout, GroupsPartitionTheRanksAndHaveTheirSize) {
  for (const Layout& layout : SomeLayouts()) {
    for (const Dimension dimension : kDimensions) {
      std::vector<int> all;
      for (const std::vector<RankId>& group : layout.Groups(dimension)) {
        ASSERT_EQ(group.size(), static_cast<size_t>(layout.Size(dimension))) << DimensionName(dimension);
        for (const RankId rank : group) {
          ASSERT_EQ(layout.Group(dimension, rank), group);
          ASSERT_EQ(layout.FirstOfGroup(dimension, rank), group.front());
        }
        const std::vector<int> values = Values(group);
        ASSERT_TRUE(std::is_sorted(values.begin(), values.end()));
        all.insert(all.end(), values.begin(), values.end());
      }
      std::sort(all.begin(), all.end());
      ASSERT_EQ(all.size(), static_cast<size_t>(layout.WorldSize()));
      for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<int>(i));
    }
  }
}

TEST(Layout, MembersOfAGroupDifferInItsDimensionOnly) {
  for (const Layout& layout : SomeLayouts()) {
    for (const RankId rank : layout.Group(Dimension::kDp, RankId(layout.WorldSize() - 1))) {
      Coordinates at = layout.CoordinatesOf(rank);
      const Coordinates last = layout.CoordinatesOf(RankId(layout.WorldSize() - 1));
      ASSERT_EQ(std::tie(at.tp, at.cp, at.pp), std::tie(last.tp, last.cp, last.pp));
    }
    for (const RankId rank : layout.Group(Dimension::kEp, RankId(0)))
      ASSERT_EQ(layout.CoordinatesOf(rank).expert_dp, 0);
    for (const RankId rank : layout.Group(Dimension::kExpertDp, RankId(0))) ASSERT_EQ(layout.CoordinatesOf(rank).ep, 0);
  }
}

// The example in the docstring of Megatron-LM's initialize_model_parallel: 16 ranks, tp 2, pp 4.
TEST(Layout, AgreesWithMegatronsExample) {
  const Layout layout{.tp = 2, .dp = 2, .pp = 4};
  EXPECT_THAT(Values(layout.Group(Dimension::kTp, RankId(0))), ElementsAre(0, 1));
  EXPECT_THAT(Values(layout.Group(Dimension::kDp, RankId(5))), ElementsAre(5, 7));
  EXPECT_THAT(Values(layout.Group(Dimension::kPp, RankId(1))), ElementsAre(1, 5, 9, 13));
}

// expert_dp = dp / ep = 2: with ep faster, ranks of one expert group are neighbours; with dp faster, replicas of one
// expert are.
TEST(Layout, EpSplitsDpInTheGivenOrder) {
  const Layout ep_first{.ep = 2, .dp = 4};
  EXPECT_THAT(Values(ep_first.Group(Dimension::kEp, RankId(0))), ElementsAre(0, 1));
  EXPECT_THAT(Values(ep_first.Group(Dimension::kExpertDp, RankId(0))), ElementsAre(0, 2));
  const Layout dp_first{.ep = 2, .dp = 4, .order = "tp-cp-dp-ep-pp"};
  EXPECT_THAT(Values(dp_first.Group(Dimension::kEp, RankId(0))), ElementsAre(0, 2));
  EXPECT_THAT(Values(dp_first.Group(Dimension::kExpertDp, RankId(0))), ElementsAre(0, 1));
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ep_first.CoordinatesOf(RankId(rank)).dp, rank);
    EXPECT_EQ(dp_first.CoordinatesOf(RankId(rank)).dp, rank);
  }
}

TEST(Layout, AContextSplitJoinsTheGradientGroup) {
  const Layout layout{.tp = 2, .cp = 2, .dp = 2};
  EXPECT_THAT(Values(layout.Group(Dimension::kDpCp, RankId(1))), ElementsAre(1, 3, 5, 7));
}

TEST(Layout, ValidateSaysWhatIsWrong) {
  const auto error = [](const Layout& layout) { return Message(layout.Validate()); };
  EXPECT_EQ(error({.tp = 0}), "tp must be at least 1, found 0");
  EXPECT_EQ(error({.ep = 3, .dp = 4}), "ep must divide dp, found ep 3 and dp 4");
  EXPECT_EQ(error({.vpp = 2}), "vpp 2 needs pp of at least 2, found 1");
  EXPECT_EQ(error({.tp = 1 << 20, .dp = 1 << 20}), "tp * cp * dp * pp must be at most 16777216 ranks");
  EXPECT_EQ(error({.order = "tp-xp"}), "order must be made of tp, cp, ep, dp and pp, found \"xp\" in \"tp-xp\"");
  EXPECT_EQ(error({.order = "tp-tp"}), "order must name tp once, found \"tp-tp\"");
  EXPECT_EQ(error({.pp = 2, .order = "tp-dp"}), "order must name pp, found \"tp-dp\"");
  EXPECT_EQ(error({.ep = 2, .dp = 2, .order = "ep-tp-dp"}),
            "order must have ep and dp side by side, for ep splits dp; found \"ep-tp-dp\"");
  EXPECT_TRUE(Layout({.dp = 4, .order = "dp"}).Validate().ok());
}

TEST(ParseLayout, ReadsSizesInAnyOrder) {
  EXPECT_EQ(LayoutJson({.tp = 8, .dp = 4}),
            R"({"tp": 8, "cp": 1, "ep": 1, "dp": 4, "pp": 1, "vpp": 1, "order": "tp-cp-ep-dp-pp"})");
  EXPECT_EQ(*ParseLayout("dp256,tp8,pp4,vpp2"), (Layout{.tp = 8, .dp = 256, .pp = 4, .vpp = 2}));
  EXPECT_EQ(*ParseLayout("tp2,pp4,dp4,order=tp-pp-dp"), (Layout{.tp = 2, .dp = 4, .pp = 4, .order = "tp-pp-dp"}));
  const auto error = [](std::string_view text) { return std::string(Message(ParseLayout(text).status())); };
  EXPECT_EQ(error("tp2,order=dp"), "layout \"tp2,order=dp\": order must name tp, found \"dp\"");
  EXPECT_EQ(error("tp8,xp2"),
            "layout \"tp8,xp2\": expected tp, cp, ep, dp, pp or vpp with a size, as tp8, found \"xp2\"");
  EXPECT_EQ(error("tp"), "layout \"tp\": expected a size behind tp, found \"\"");
  EXPECT_EQ(error("tp2,tp2"), "layout \"tp2,tp2\": tp is given twice");
  EXPECT_EQ(error("order=tp-dp,order=dp-tp"), "layout \"order=tp-dp,order=dp-tp\": order is given twice");
  EXPECT_EQ(error("ep3,dp4"), "layout \"ep3,dp4\": ep must divide dp, found ep 3 and dp 4");
}

TEST(Layout, ForAnotherNumberOfRanksHasMoreDataParallelismOrLess) {
  const Layout layout{.tp = 2, .dp = 3, .pp = 2};
  EXPECT_EQ(layout.WithRanks(8), (Layout{.tp = 2, .dp = 2, .pp = 2}));
  EXPECT_EQ(layout.WithRanks(16), (Layout{.tp = 2, .dp = 4, .pp = 2}));
  EXPECT_EQ(layout.WithRanks(10), std::nullopt);
  EXPECT_EQ(layout.WithRanks(0), std::nullopt);
  EXPECT_TRUE(layout.CheckRanks(layout.WorldSize()).ok());
  EXPECT_EQ(Message(Layout{.tp = 2, .dp = 3}.CheckRanks(8)), "its layout has 6 ranks, the run has 8");
  EXPECT_EQ((Layout{.ep = 2, .dp = 4}).WithRanks(3), std::nullopt) << "experts divide the data parallelism";
}

}  // namespace
}  // namespace lockstep::cluster
