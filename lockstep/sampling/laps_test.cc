#include "lockstep/sampling/laps.h"

#include <gtest/gtest.h>

namespace lockstep::sampling {
namespace {

TEST(Laps, JobsThatRunTogetherShareOne) {
  Laps laps(1000);
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 1000, .now = 0}), (Lap{.number = 1, .offset = 0}));
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 500, .now = 250}), (Lap{.number = 1, .offset = 250}));
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 500, .now = 750}), (Lap{.number = 2, .offset = 0}));      // it had lap 1
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 1000, .now = 1000}), (Lap{.number = 2, .offset = 500}));  // as fast as job 2
}

TEST(Laps, OneThatIsOverHasNoFollowers) {
  Laps laps(1000);
  laps.Begin({.job = 1, .steps = 100, .now = 0});
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 100, .now = 100}), (Lap{.number = 2, .offset = 0}));
}

TEST(Laps, WhoeverTheCacheBridgesBeginsWhereTheLeaderDid) {
  Laps laps(1000, 100);
  laps.Begin({.job = 1, .steps = 1000, .now = 0});
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 1000, .now = 100}).offset, 0U);
  EXPECT_EQ(laps.Begin({.job = 3, .steps = 1000, .now = 101}).offset, 101U);
}

TEST(Laps, ALeaderThatNobodyHasTimedIsWhereItBegan) {
  Laps laps(1000);
  laps.Begin({.job = 1, .steps = 0, .now = 0});
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 0, .now = 400}).offset, 0U);
  laps.Pace(1, 800);
  EXPECT_EQ(laps.Begin({.job = 3, .steps = 800, .now = 400}), (Lap{.number = 1, .offset = 500}));
}

// A job with a quarter of the set begins four epochs in the time of one of the longest.
TEST(Laps, PacedOnesHaveShortEpochsInWindows) {
  Laps laps(1000);
  laps.SetPaced(true);
  laps.Announce(1, 250);
  laps.Announce(2, 1000);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    const Lap lap = laps.Begin({.job = 1, .steps = 250, .items = 240, .now = 250 * epoch});
    EXPECT_EQ(lap, (Lap{.number = 1, .offset = 250 * static_cast<uint64_t>(epoch), .window = 240})) << epoch;
    if (epoch == 0) {
      EXPECT_EQ(laps.Begin({.job = 2, .steps = 1000, .items = 1000, .now = 0}), (Lap{.number = 1}));
    }
  }
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 250, .items = 240, .now = 1000}).number, 2U);
}

TEST(Laps, NoPlaceOfALapIsInTwoWindowsOfAJob) {
  Laps laps(1000);
  laps.SetPaced(true);
  laps.Announce(2, 1000);
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 400, .now = 0}).window, 400U);
  laps.Begin({.job = 2, .steps = 1000, .now = 0});
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 400, .now = 380}), (Lap{.number = 1, .offset = 400, .window = 400}));
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 400, .now = 790}).number, 2U);  // 800 + 400 > 1000
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 400, .now = 800}).number, 3U);  // alone in lap 2, which it had whole
}

TEST(Laps, AJobThatGoesOnGetsLapsThatItHasNotHad) {
  Laps laps(1000);
  laps.GoOn(1, 7);
  EXPECT_EQ(laps.Begin({.job = 1, .steps = 1000, .now = 0}).number, 8U);
  EXPECT_EQ(laps.Begin({.job = 2, .steps = 1000, .now = 10}).number, 8U);
  laps.GoOn(3, 8);
  EXPECT_EQ(laps.Begin({.job = 3, .steps = 1000, .now = 20}).number, 9U);
}

}  // namespace
}  // namespace lockstep::sampling
