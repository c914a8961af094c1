#include "lockstep/agent/near.h"

#include <gtest/gtest.h>

#include "lockstep/agent/buffers.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

// Four ranks of epoch 7 that have all copied step 10, each in slot 0.
class NearTest : public testing::Test {
 protected:
  NearTest() {
    board_->epoch = 7;
    for (int rank = 0; rank < 4; ++rank) {
      board_->rank[rank].epoch = 7;
      board_->rank[rank].step_time_ns = 160'000'000;
      Copies(rank, 0, 10);
    }
  }
  void Begins(int rank, int slot, int64_t step) {
    ls_slot_open(&board_->rank[rank].slot[slot], 7, step, 4);
    ls_attempted(&board_->rank[rank], step);
  }
  void Copies(int rank, int slot, int64_t step) {
    Begins(rank, slot, step);
    ls_slot_done(&board_->rank[rank].slot[slot], 8, 8, 0, 0);
  }
  bool IsNear(const std::set<int>& gone) const { return CheckpointIsNear(*board_, gone); }

  BoardMap board_ = *BoardMap::Create(4);
};

TEST_F(NearTest, NothingIsMissingBetweenSteps) {
  EXPECT_FALSE(IsNear({}));
  EXPECT_FALSE(IsNear({2}));
}

TEST_F(NearTest, TheDeadRankHasCopiedAndALiveOneHasNot) {
  for (const int rank : {0, 2, 3}) Copies(rank, 1, 11);
  EXPECT_TRUE(IsNear({2}));
  Begins(1, 1, 11);
  EXPECT_TRUE(IsNear({2})) << "still copying";
  ls_slot_done(&board_->rank[1].slot[1], 8, 8, 0, 0);
  EXPECT_FALSE(IsNear({2})) << "whole";
}

TEST_F(NearTest, WhatTheDeadRankNeverCopiedIsNotNear) {
  for (const int rank : {0, 1, 3}) Copies(rank, 1, 11);
  EXPECT_FALSE(IsNear({2}));
  Begins(2, 1, 11);
  EXPECT_FALSE(IsNear({2})) << "it died while it copied";
  EXPECT_FALSE(IsNear({0, 2})) << "one of the dead is enough";
}

TEST_F(NearTest, WhatALiveRankHasSkippedIsNotNear) {
  for (const int rank : {0, 2, 3}) Copies(rank, 1, 11);
  ls_attempted(&board_->rank[1], 11);
  EXPECT_FALSE(IsNear({2}));
}

TEST_F(NearTest, ADeathOnAnotherNode) {
  Copies(3, 1, 11);
  EXPECT_TRUE(IsNear({}));
}

TEST_F(NearTest, BehindTheFenceNothingIsNear) {
  for (const int rank : {0, 2, 3}) Copies(rank, 1, 11);
  board_->epoch = 0;
  EXPECT_FALSE(IsNear({2}));
}

TEST_F(NearTest, PatienceIsAQuarterOfAStepAndASecondAtMost) {
  EXPECT_NEAR(PatienceForCheckpoint(*board_).value, 0.04, 1e-9);
  board_->rank[1].step_time_ns = 60'000'000'000;
  EXPECT_EQ(PatienceForCheckpoint(*board_).value, 1.0);
}

}  // namespace
}  // namespace lockstep::agent
