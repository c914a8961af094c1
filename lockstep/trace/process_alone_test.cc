#include "lockstep/trace/process_alone.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace lockstep::trace {
namespace {

constexpr int64_t kMs = 1'000'000;

TrailSnapshot TrailOf(const char* library, uint32_t pid = 10) {
  TrailSnapshot trail;
  trail.origin.world = 2;
  trail.origin.pid = pid;
  std::strncpy(trail.origin.source, library, sizeof trail.origin.source - 1);
  trail.taken_ns = 1000 * kMs;
  return trail;
}

ls_record OpOf(int64_t launch_ms, int64_t end_ms, int64_t alone_ms, uint8_t state = LS_OP_COMPLETED) {
  ls_record op{};
  op.kind = LS_RECORD_OP;
  op.time_ns = end_ms * kMs;
  op.body.op.function = LS_ALL_REDUCE;
  op.body.op.state = state;
  ls_op_set_alone(&op, alone_ms < 0 ? -1 : alone_ms * kMs);
  ls_op_set_duration(&op, (end_ms - launch_ms) * kMs);
  return op;
}

// Of the op of gloo from 100 ms on, which had left the one before 80 ms ago; -1: unknown.
int64_t AloneMs(std::vector<TrailSnapshot> trails) {
  LimitAlone(trails);
  std::vector<TrailSnapshot> again = trails;
  LimitAlone(again);
  const ls_record& op = trails.front().ended.back();
  EXPECT_EQ(op.body.op.alone, again.front().ended.back().body.op.alone) << "said twice it changes nothing more";
  return op.body.op.alone == LS_UNKNOWN ? -1 : ls_delta_ns(op.body.op.alone, op.delta_shift) / kMs;
}

class ProcessAlone : public testing::Test {
 protected:
  ProcessAlone() { gloo_.ended = {OpOf(100, 105, 80)}; }

  TrailSnapshot gloo_ = TrailOf("gloo"), nccl_ = TrailOf("nccl");
};

TEST_F(ProcessAlone, BeginsAnewWhereAnOpOfAnotherLibraryEnded) {
  EXPECT_EQ(AloneMs({gloo_}), 80);
  nccl_.ended = {OpOf(10, 15, -1), OpOf(30, 60, -1), OpOf(95, 130, -1)};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 40) << "the last that ended since, and before it";
  nccl_.origin.pid = 11;
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 80) << "another process";
}

TEST_F(ProcessAlone, AndTheOtherWayRound) {
  nccl_.ended = {OpOf(200, 210, 120)};
  EXPECT_EQ(AloneMs({nccl_, gloo_}), 95);
}

TEST_F(ProcessAlone, IsUnknownWhereOfAnotherLibraryOnlyLaunchesAre) {
  nccl_.ended = {OpOf(15, 70, -1, LS_OP_LAUNCHED)};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 80) << "before";
  nccl_.ended = {OpOf(30, 900, -1, LS_OP_LAUNCHED)};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), -1);
  nccl_.ended.clear();
  nccl_.under_way = {OpOf(30, 30, -1, LS_OP_LAUNCHED)};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), -1);
  nccl_.under_way[0].body.op.state = LS_OP_STARTED;
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 80) << "what a device is in does not hold the process";
}

TEST_F(ProcessAlone, IsUnknownWhereTheOtherHasForgotten) {
  nccl_.ended = {OpOf(150, 160, -1)};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 80);
  nccl_.missed = 1;
  EXPECT_EQ(AloneMs({gloo_, nccl_}), -1);
  nccl_.told_one_of = {2};
  EXPECT_EQ(AloneMs({gloo_, nccl_}), 80) << "it was asked before records were left out";
}

// A send of gloo that nobody waited for.
TEST_F(ProcessAlone, IsKnownBehindASendThatNobodyWaitedFor) {
  gloo_.ended = {OpOf(150, 160, -1, LS_OP_LAUNCHED)};
  nccl_.ended = {OpOf(200, 210, 120)};
  EXPECT_EQ(AloneMs({nccl_, gloo_}), 120);
}

}  // namespace
}  // namespace lockstep::trace
