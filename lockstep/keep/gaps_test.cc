#include "lockstep/keep/gaps.h"

#include <gtest/gtest.h>

namespace lockstep::keep {
namespace {

// A network about which every question takes a millisecond of a clock that stands still otherwise.
class GapsTest : public testing::Test {
 protected:
  // Milliseconds that one chunk waited, and whether the network was free then.
  std::pair<int, bool> Await() {
    const Nanos before = clock_.Now();
    const bool free = gaps_.Await(stop_.get_token());
    return {static_cast<int>((clock_.Now() - before).value / 1'000'000), free};
  }

  FakeClock clock_;
  std::stop_source stop_;
  int busy_for_ = 0;  // questions
  const std::function<std::optional<bool>()> busy_ = [this] {
    clock_.Advance(Seconds{0.001});
    return busy_for_-- > 0;
  };
  Gaps gaps_{clock_, busy_};
};

TEST_F(GapsTest, AChunkWaitsForAGap) {
  busy_for_ = 5;
  EXPECT_EQ(Await(), std::pair(6, true));
  EXPECT_EQ(Await(), std::pair(1, true));
}

TEST_F(GapsTest, InAllNoLongerThanSendingTakesAndTheGrant) {
  busy_for_ = 1'000'000;
  EXPECT_EQ(Await(), std::pair(20, false));  // the grant
  EXPECT_EQ(Await(), std::pair(1, false));   // nothing was sent since
  clock_.Advance(Seconds{0.03});             // a chunk is sent
  EXPECT_EQ(Await(), std::pair(29, false));  // 30 + 20 - 21 that it has waited
}

TEST_F(GapsTest, WhoStopsDoesNotWait) {
  busy_for_ = 1'000'000;
  stop_.request_stop();
  EXPECT_EQ(Await(), std::pair(1, false));
}

TEST_F(GapsTest, NobodyWaitsWhereNothingIsKnown) {
  const std::function<std::optional<bool>()> none, unknown = [] { return std::nullopt; };
  EXPECT_FALSE(Gaps(clock_, none).Await(stop_.get_token()));
  EXPECT_FALSE(Gaps(clock_, unknown).Await(stop_.get_token()));
}

}  // namespace
}  // namespace lockstep::keep
