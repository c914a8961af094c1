#include "lockstep/trace/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::trace {
namespace {

using testing::ElementsAre;

CommOp Op(int rank, uint32_t communicator, int64_t sequence) {
  CommOp op;
  op.rank = rank;
  op.communicator = communicator;
  op.sequence = sequence;
  op.state = OpState::kCompleted;
  op.duration_ns = 1;
  return op;
}

TEST(Collectives, OpsOfOneNumberInOneCommunicatorAreTogether) {
  const Collectives collectives({Op(0, 1, 7), Op(0, 0, 7), Op(0, 1, 6), Op(1, 1, 7), Op(1, 0, 7)});
  ASSERT_EQ(collectives.size(), 3U);
  EXPECT_EQ(collectives.of(0), collectives.of(3));
  EXPECT_EQ(collectives.of(1), collectives.of(4));
  EXPECT_EQ(collectives.OpsOf(collectives.of(0)), 2U);
  EXPECT_EQ(collectives.OpsOf(collectives.of(2)), 1U);
  EXPECT_EQ(collectives.KeyOf(collectives.of(2)), Collectives::Key(1, 6));
  EXPECT_THAT(collectives.InOrder(), ElementsAre(collectives.of(1), collectives.of(2), collectives.of(0)));
}

TEST(Collectives, WhatHasNotEndedAndTransfersAreNone) {
  CommOp open = Op(0, 0, 1), send = Op(0, 0, 1), unknown = Op(0, 0, 1);
  open.state = OpState::kStarted;
  send.direction = Direction::kSend;
  unknown.duration_ns = -1;
  const Collectives collectives({open, send, unknown});
  EXPECT_EQ(collectives.size(), 0U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(collectives.of(i), Collectives::kNone);
}

}  // namespace
}  // namespace lockstep::trace
