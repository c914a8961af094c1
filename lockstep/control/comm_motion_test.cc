#include "lockstep/control/comm_motion.h"

#include <gtest/gtest.h>

#include "lockstep/control/scenario.h"
#include "lockstep/trace/trails.h"

namespace lockstep::control {
namespace {

// Two ranks, of which the first is in a collective.
class CommMotionTest : public testing::Test {
 protected:
  CommMotionTest() {
    for (uint32_t rank = 0; rank < 2; ++rank) {
      trace::TrailSnapshot& trail = Of(rank);
      trail.origin.rank = rank;
      trail.origin.world = 2;
      trail.alive = true;
      ls_communicator& world = trail.communicators.emplace_back();
      world.id = 9;
      world.launched = world.ended = 7;
      world.rank = rank;
      world.size = 2;
    }
    Of(0).communicators[0].launched = 8;
    ls_record op{};
    op.kind = LS_RECORD_OP;
    op.time_ns = 5;
    op.body.op.number = 8;
    op.body.op.tag = LS_NO_TAG;
    op.body.op.function = LS_ALL_REDUCE;
    op.body.op.state = LS_OP_STARTED;
    Of(0).under_way = {op};
  }
  trace::TrailSnapshot& Of(uint32_t rank) { return trails_[{rank, "gloo"}]; }
  std::optional<Nanos> Look(double at) {
    for (auto& [owner, trail] : trails_) trail.taken_ns = At(at).value;
    motion_.Look(trails_, trace::JoinTrails({Of(0), Of(1)}), At(at));
    return Since(at);
  }
  std::optional<Nanos> Since(double at) const {
    const std::optional<detect::CommWait> wait = motion_.Wait(At(at));
    return wait ? std::optional(wait->since) : std::nullopt;
  }

  Trails trails_;
  CommMotion motion_;
};

TEST_F(CommMotionTest, WaitsSinceTheNewestMove) {
  EXPECT_EQ(Since(1), std::nullopt) << "nobody has looked";
  EXPECT_EQ(Look(10), At(10));
  EXPECT_EQ(Look(15), At(10));
  Of(0).under_way[0].body.op.messages = 3;
  EXPECT_EQ(Look(20), At(20)) << "it heard something";
  EXPECT_EQ(Look(25), At(20));
  Of(1).communicators[0].launched = 8;
  EXPECT_EQ(Look(30), At(30)) << "the other launched it";
  ls_record ended = Of(0).under_way[0];
  ended.time_ns = 99;
  ended.body.op.number = 7;
  ended.body.op.state = LS_OP_COMPLETED;
  Of(0).ended = {ended};
  EXPECT_EQ(Look(35), At(35)) << "another one ended, of which no counter tells";
  Of(0).ended.clear();
  EXPECT_EQ(Look(40), At(35)) << "it is too old to be told";
  EXPECT_EQ(Since(60), At(35));
  EXPECT_EQ(Since(100), std::nullopt) << "what has become of it since nobody knows";
}

// Collectives of 10 ms at each tenth of a second until 39.91 s, but for two rests of 2 s; then one waits.
TEST_F(CommMotionTest, HowLongItIsQuietIsToldBesideWhatIsUsual) {
  for (uint32_t number = 1; number < 300; ++number)
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ls_record op = Of(0).under_way[0];
      const int rests = (number >= 100) + (number >= 200);
      op.time_ns = At(6.01 + 0.1 * number + 2 * rests).value;
      op.body.op.number = number;
      op.body.op.state = LS_OP_COMPLETED;
      ls_op_set_duration(&op, 10'000'000);
      Of(rank).ended.push_back(op);
    }
  Of(0).under_way[0].time_ns = At(40).value;
  Of(0).under_way[0].body.op.number = 300;
  Look(40.3);
  EXPECT_EQ(motion_.Wait(At(40.3))->usual_quiet, std::nullopt) << "nobody asks";
  Look(42.5);
  const detect::CommWait wait = motion_.Wait(At(44)).value();
  EXPECT_NEAR(ToSeconds(wait.quiet_since - At(40)).value, 0, 1e-6);
  EXPECT_NEAR(wait.quiet.value, 2.5, 1e-6);
  EXPECT_NEAR(wait.usual_quiet.value().value, 3 * 2.09, 1e-3);
}

TEST_F(CommMotionTest, WhereNobodyWaitsThereIsNothingToSay) {
  Of(0).under_way.clear();
  Look(10);
  EXPECT_EQ(Look(15), std::nullopt);
}

// A device's library may carry the training.
TEST_F(CommMotionTest, SomeOfItMayBeWhereNobodySees) {
  Of(1).libraries = LS_LIBRARY_OF_DEVICES;
  Look(10);
  EXPECT_EQ(Look(15), std::nullopt);
}

TEST_F(CommMotionTest, AFailedOpIsNotWaitedIn) {
  Of(0).ended = Of(0).under_way;
  Of(0).ended[0].body.op.state = LS_OP_FAILED;
  Of(0).under_way.clear();
  Look(10);
  EXPECT_EQ(Look(15), std::nullopt);
}

}  // namespace
}  // namespace lockstep::control
