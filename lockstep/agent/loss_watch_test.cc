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
  EXPECT_EQ(bad[0], (control::BadLoss{RankId(0), 10, 13, 13}));
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 15, kBad}})[0], (control::BadLoss{RankId(0), 10, 13, 15}));
  EXPECT_EQ(losses.Take(epoch, {{RankId(0), 16, 1.5}})[0], (control::BadLoss{RankId(0), -1, -1, 16}))
      << "it is well again";
  EXPECT_TRUE(losses.Take(epoch, {{RankId(0), 17, kNone}}).empty());
}

TEST(LossWatch, BeginsAnewWithTheEpoch) {
  LossWatch losses;
  losses.Take(EpochId(2), {{RankId(0), 10, 1.5}});
  EXPECT_TRUE(losses.Take(EpochId(3), {{RankId(0), 11, kBad}}).empty());
}

}  // namespace
}  // namespace lockstep::agent
