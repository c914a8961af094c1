#include "lockstep/trace/comm_share.h"

#include <gtest/gtest.h>

namespace lockstep::trace {
namespace {

CommOp Ended(int rank, int64_t begin, int64_t end) {
  CommOp op;
  op.rank = rank;
  op.state = OpState::kCompleted;
  op.created_ns = begin;
  op.duration_ns = end - begin;
  return op;
}

// Rank 0: 0 to 10, 5 to 12 and 30 to 40: 22 of 40. Rank 1: 0 to 4 and 8 to 10: 6 of 10.
TEST(ShareInCollectives, IsOfTheTimeInWhichAnyIsUnderWay) {
  CommLog log;
  log.communicators = {{.name = "0", .description = "", .ranks = {0, 1}}};
  log.ops = {Ended(0, 30, 40), Ended(0, 0, 10), Ended(0, 5, 12), Ended(1, 0, 4), Ended(1, 8, 10)};
  const auto share = ShareInCollectives(log);
  ASSERT_TRUE(share);
  EXPECT_NEAR(*share, (22.0 / 40 + 6.0 / 10) / 2, 1e-12);
}

// Of the first communicator one of four is told: 2 and 3 stand for 20; the second has 5 more of 40.
TEST(ShareInCollectives, WhatIsToldStandsForWhatIsNot) {
  CommLog log;
  log.communicators = {{.name = "0", .description = "", .ranks = {0, 1}},
                       {.name = "1", .description = "", .ranks = {0, 1}}};
  log.communicators.front().told_one_of = 4;
  log.ops = {Ended(0, 0, 2), Ended(0, 20, 23), Ended(0, 35, 40)};
  log.ops.back().communicator = 1;
  EXPECT_NEAR(ShareInCollectives(log).value_or(0), 25.0 / 40, 1e-12);
  log.communicators.front().told_one_of = 100;
  EXPECT_EQ(ShareInCollectives(log), 1) << "they have overlapped";
}

TEST(ShareInCollectives, OfNothingIsNothing) {
  CommLog log;
  log.communicators = {{.name = "0", .description = "", .ranks = {0, 1}}};
  EXPECT_FALSE(ShareInCollectives(log));
  log.ops = {Ended(0, 0, 10)};
  EXPECT_FALSE(ShareInCollectives(log)) << "of one alone, all would be collective";
}

}  // namespace
}  // namespace lockstep::trace
