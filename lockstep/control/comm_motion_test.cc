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
    return motion_.WaitsSince(At(at));
  }

  Trails trails_;
  CommMotion motion_;
};

TEST_F(CommMotionTest, WaitsSinceTheNewestMove) {
  EXPECT_EQ(motion_.WaitsSince(At(1)), std::nullopt) << "nobody has looked";
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
  EXPECT_EQ(motion_.WaitsSince(At(60)), At(35));
  EXPECT_EQ(motion_.WaitsSince(At(100)), std::nullopt) << "what has become of it since nobody knows";
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
