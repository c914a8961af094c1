#include "lockstep/trace/common_moments.h"

#include <gtest/gtest.h>

namespace lockstep::trace {
namespace {

TEST(CommonMoments, MoveOthersWithTheNearest) {
  CommonMoments common;
  EXPECT_TRUE(common.empty());
  EXPECT_EQ(common.Moved(3), 3);
  common.Add(4, 24);
  common.Add(2, 12);
  common.Sort();
  EXPECT_EQ(common.Moved(0), 10);
  EXPECT_EQ(common.Moved(2), 12);
  EXPECT_EQ(common.Moved(2.5), 12.5);
  EXPECT_EQ(common.Moved(3.5), 23.5);
  EXPECT_EQ(common.Moved(9), 29);
}

TEST(CommonMoments, OfTwoAsNearTheEarlierCounts) {
  CommonMoments common;
  common.Add(4, 24);
  common.Add(2, 12);
  common.Sort();
  EXPECT_EQ(common.Moved(3), 13);
}

}  // namespace
}  // namespace lockstep::trace
