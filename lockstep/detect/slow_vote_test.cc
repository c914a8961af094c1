#include "lockstep/detect/slow_vote.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// rank = tp + 2 (pp + 4 dp): pipelines of the first tensor rank are {0, 2, 4, 6}, {8, 10, 12, 14}, ...
const cluster::Layout kLayout{.tp = 2, .dp = 4, .pp = 4, .order = "tp-pp-dp"};

TEST(SlowVote, TheGroupWithMostOutliersInMostRoundsIsNamed) {
  SlowVote vote(kLayout);
  const std::vector<std::vector<int>> rounds = {{8, 12, 3}, {8, 10, 14}, {1}, {8, 10, 12, 14}, {8, 12, 14, 0, 1}};
  for (const auto& round : rounds) {
    EXPECT_FALSE(vote.complete());
    vote.Add(round);
  }
  EXPECT_TRUE(vote.complete());
  const auto leaders = vote.Leaders();
  ASSERT_THAT(leaders, SizeIs(1));
  EXPECT_EQ(leaders[0].dimension, cluster::Dimension::kPp);
  EXPECT_THAT(leaders[0].ranks, ElementsAre(RankId(8), RankId(10), RankId(12), RankId(14)));
  EXPECT_EQ(leaders[0].flagged, 4);
  // Of the four, two were outliers in more than half of the rounds... 8 in four, 12 and 14 in three, 10 in two.
  EXPECT_THAT(leaders[0].outliers, ElementsAre(RankId(8), RankId(12), RankId(14)));
}

TEST(SlowVote, OfEqualGroupsTheSmallest) {
  SlowVote vote(kLayout, 1);
  vote.Add(std::vector<int>{2, 3});
  const auto leaders = vote.Leaders();
  ASSERT_THAT(leaders, SizeIs(1));
  EXPECT_EQ(leaders[0].dimension, cluster::Dimension::kTp);
  EXPECT_THAT(leaders[0].ranks, ElementsAre(RankId(2), RankId(3)));
}

TEST(SlowVote, NobodyWhereOutliersComeAndGo) {
  SlowVote vote(kLayout);
  for (const int rank : {0, 9, 18, 27, 6}) vote.Add(std::vector<int>{rank});
  EXPECT_TRUE(vote.complete());
  EXPECT_THAT(vote.Leaders(), IsEmpty());
  SlowVote nobody(kLayout);
  for (int round = 0; round < SlowVote::kRounds; ++round) nobody.Add({});
  EXPECT_THAT(nobody.Leaders(), IsEmpty());
}

TEST(SlowVote, RanksThatAreNotThereAndSaidTwiceCountNothing) {
  SlowVote vote(kLayout, 1);
  vote.Add(std::vector<int>{-1, 32, 5, 5, 5, 8, 10});
  ASSERT_THAT(vote.Leaders(), SizeIs(1));
  EXPECT_EQ(vote.Leaders()[0].ranks.front(), RankId(8));
}

// A slow rank is among the outliers in 4 of 5 rounds, with others at random: its group leads, and it is in it. The
// order of rounds changes nothing.
TEST(SlowVote, FindsASlowRankAmongNoise) {
  std::mt19937 random(7);
  int found = 0;
  constexpr int kJobs = 200;
  for (int job = 0; job < kJobs; ++job) {
    const int slow = static_cast<int>(random() % 32);
    const std::vector<RankId> stages = kLayout.Group(cluster::Dimension::kPp, RankId(slow));
    std::vector<std::vector<int>> rounds(5);
    for (size_t round = 0; round < rounds.size(); ++round) {
      if (round > 0)
        for (const RankId rank : stages) rounds[round].push_back(rank.value());
      for (int i = 0; i < 3; ++i) rounds[round].push_back(static_cast<int>(random() % 32));
    }
    SlowVote vote(kLayout), shuffled(kLayout);
    for (const auto& round : rounds) vote.Add(round);
    std::shuffle(rounds.begin(), rounds.end(), random);
    for (const auto& round : rounds) shuffled.Add(round);
    ASSERT_EQ(vote.Leaders().size(), shuffled.Leaders().size());
    const auto leaders = vote.Leaders();
    found += std::any_of(leaders.begin(), leaders.end(), [&](const SlowVote::Leader& leader) {
      return std::find(leader.ranks.begin(), leader.ranks.end(), RankId(slow)) != leader.ranks.end();
    });
  }
  EXPECT_EQ(found, kJobs);
}

}  // namespace
}  // namespace lockstep::detect
