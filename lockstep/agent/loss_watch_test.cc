#include "lockstep/agent/loss_watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::agent {
namespace {

constexpr double kBad = std::numeric_limits<double>::infinity();
const double kNone = std::nan("");

TEST(LossWatch, TellsOfWhoHadAFiniteLoss) {
  LossWatch losses;
  const EpochId epoch(2);
  EXPECT_TRUE(losses.Take(epoch, {{RankId(0), 10, 1.5}, {RankId(1), 10, kBad}, {RankId(2), 10, kNone}}).empty());
  // Rank 0 was seen at step 10, and next at 13: what it made of 11 is not known, nor what the update of 10 did.
  const auto bad = losses.Take(epoch, {{RankId(0), 13, kBad}, {RankId(1), 13, kBad}, {RankId(2), 13, kNone}});
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0], (control::BadLoss{RankId(0), 10, 13, 13, epoch}));
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 15, kBad}})[0], (control::BadLoss{RankId(0), 10, 13, 15, epoch}));
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 16, 1.5}})[0], (control::BadLoss{RankId(0), -1, -1, 16}))
      << "it is well again";
  EXPECT_TRUE(losses.Take(epoch, {{RankId(0), 17, kNone}}).empty());
}

// A restart may have begun from what was bad already.
TEST(LossWatch, WhatWasFiniteOutlivesAnEpoch) {
  LossWatch losses;
  losses.Take(EpochId(2), {{RankId(0), 19, 1.5}, {RankId(1), 20, 1.5}});
  losses.Take(EpochId(2), {{RankId(0), 21, kBad}, {RankId(1), 21, kBad}});
  EXPECT_EQ(losses.BadFrom(), (control::CheckpointId{EpochId(2), 19})) << "of the rank that was first";
  EXPECT_TRUE(losses.Take(EpochId(3), {{RankId(0), 21, kNone}}).empty());
  EXPECT_EQ(losses.BadFrom(), std::nullopt) << "of this epoch nothing is known yet";
  const auto bad = losses.Take(EpochId(3), {{RankId(0), 22, kBad}});
  ASSERT_EQ(bad.size(), 1u);
  EXPECT_EQ(bad[0], (control::BadLoss{RankId(0), 19, 22, 22, EpochId(2)}));
  losses.Take(EpochId(3), {{RankId(0), 23, 1.5}});
  EXPECT_EQ(losses.BadFrom(), std::nullopt);
  EXPECT_EQ(losses.Take(EpochId(3), {{RankId(0), 24, kBad}})[0], (control::BadLoss{RankId(0), 23, 24, 24, EpochId(3)}));
}

// What lies between two looks, and before an agent's first one, the ranks have kept.
TEST(LossWatch, RanksKeepWhichStepsHadAFiniteLoss) {
  LossWatch losses;
  const EpochId epoch(2);
  const auto first = losses.Take(epoch, {{RankId(0), 20, kBad, 3, 18}, {RankId(1), 20, kBad, -1, -1}});
  ASSERT_EQ(first.size(), 1u) << "rank 1 never had one";
  EXPECT_EQ(first[0], (control::BadLoss{RankId(0), 18, 20, 20, epoch}));
  EXPECT_EQ(losses.BadFrom(), (control::CheckpointId{epoch, 18}));
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 22, kBad, 3, 18}})[0].seen_since, 20);
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 25, kBad, 3, 23}})[0], (control::BadLoss{RankId(0), 23, 25, 25, epoch}))
      << "it was well in between";
  EXPECT_TRUE(losses.Take(epoch, {{RankId(0), 26, kNone, 3, 23}}).empty());
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 27, kBad, 3, 23}})[0].seen_since, 25)
      << "one that was not told says nothing";
}

// A loss may be newer than the step beside it.
TEST(LossWatch, ABadLossIsOfAStepBehindTheFiniteOne) {
  LossWatch losses;
  EXPECT_EQ(losses.Take(EpochId(1), {{RankId(0), 10, kBad, 1, 10}})[0],
            (control::BadLoss{RankId(0), 10, 11, 10, EpochId(1)}));
}

// A script that tells NaN until it knows better does so again when the job begins from the beginning.
TEST(LossWatch, NothingIsWrongBeforeTheFirstFiniteLoss) {
  LossWatch losses;
  EXPECT_TRUE(losses.Take(EpochId(1), {{RankId(0), 3, kBad}}).empty());
  losses.Take(EpochId(1), {{RankId(0), 5, 1.5}});
  EXPECT_TRUE(losses.Take(EpochId(2), {{RankId(0), 4, kBad}}).empty());
  EXPECT_EQ(losses.Take(EpochId(2), {{RankId(0), 5, kBad}}).size(), 1u);
}

}  // namespace
}  // namespace lockstep::agent
