#include "lockstep/synth/ddp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::synth {
namespace {

using testing::ElementsAre;

absl::StatusOr<std::vector<trace::KinetoRank>> Ranks(const DdpShape& shape, const std::vector<Fault>& faults,
                                                     const std::vector<int>& wanted, uint64_t seed = 1) {
  const std::string folder = trace::TempPath("ddp");
  LS_RETURN_IF_ERROR(WriteDdpTraces(folder, shape, faults, seed));
  std::vector<std::string> paths;
  paths.reserve(wanted.size());
  for (const int rank : wanted) paths.push_back(fmt::format("{}/rank-{}.json.gz", folder, rank));
  return trace::ReadKinetoFiles(paths, std::nullopt);
}

std::string Counters(const trace::TracedJob& job) {
  std::string text;
  for (const trace::Counter& counter : job.counters) text += fmt::format("{}={} ", counter.name, counter.count);
  return text;
}

class Eras : public testing::TestWithParam<KinetoEra> {};

TEST_P(Eras, GiveTheSameJob) {
  const DdpShape shape{.ranks = 4, .steps = 6, .clock_offset{0.05}, .era = GetParam()};
  auto ranks = Ranks(shape, {}, {0, 1, 2, 3});
  ASSERT_TRUE(ranks.ok()) << Message(ranks.status());
  const auto built = trace::BuildKinetoJob(*std::move(ranks), {});
  ASSERT_TRUE(built.ok()) << Message(built.status());
  EXPECT_EQ(Counters(built->job), "");
  EXPECT_THAT(built->job.kinds, ElementsAre("compute", "allreduce"));
  EXPECT_EQ(built->job.steps.size(), 6U);
  EXPECT_EQ(built->job.lanes.size(), 24U);
  EXPECT_TRUE(built->job.graph.absent.empty());
  // Four segments that end where a bucket is ready, the optimizer behind the last one, and the buckets.
  EXPECT_EQ(built->job.ops.size(), 5U + 4U);
  for (const trace::ClockOffset& clock : built->clocks) EXPECT_LT(clock.error_ns, 2000);
  // Without the clocks' differences, a bucket ends everywhere at once: its transfer is 4 ms, its jitter aside.
  for (uint32_t op = 0; op < built->job.ops.size(); ++op) {
    if (built->job.ops[op].type != trace::OpType::kCollective) continue;
    for (size_t lane = 0; lane < built->job.lanes.size(); ++lane)
      EXPECT_NEAR(static_cast<double>(built->job.transfers[built->job.graph.Cell(op, lane)]), 0.004, 1e-4);
  }
}
INSTANTIATE_TEST_SUITE_P(All, Eras, testing::Values(KinetoEra::kMicros, KinetoEra::kDecimals, KinetoEra::kBase));

TEST(KinetoJob, SomeRanksWillDoAndTheOthersAreNamed) {
  auto ranks = Ranks({.ranks = 5, .steps = 3}, {}, {3, 1});
  const auto built = trace::BuildKinetoJob(*std::move(ranks), {{1, 2}});
  ASSERT_TRUE(built.ok()) << Message(built.status());
  EXPECT_THAT(built->ranks, ElementsAre(1, 3));
  EXPECT_THAT(built->absent_ranks, ElementsAre(0, 2, 4));
  EXPECT_THAT(built->job.steps, ElementsAre(1, 2));
}

TEST(KinetoJob, FilesThatDoNotBelongTogetherAreRefused) {
  auto twice = Ranks({.ranks = 2, .steps = 2}, {}, {1, 1});
  EXPECT_THAT(Message(trace::BuildKinetoJob(*std::move(twice), {}).status()), testing::HasSubstr("are both of rank 1"));
  auto ranks = Ranks({.ranks = 2, .steps = 2}, {}, {0, 1});
  ranks->at(1).world_size = 3;
  EXPECT_THAT(Message(trace::BuildKinetoJob(*ranks, {}).status()),
              testing::HasSubstr("are of different jobs: 2 ranks"));
  ranks->at(1).world_size = 2;
  for (trace::ProfilerStep& step : ranks->at(1).steps) step.number += 100;
  EXPECT_THAT(Message(trace::BuildKinetoJob(*ranks, {}).status()), testing::HasSubstr("no step that all 2 ranks have"));
}

// The clocks of these two don't fit, whatever is tried: nothing is guessed.
TEST(KinetoJob, CommunicationsThatDoNotEndTogetherAreNotMatched) {
  auto ranks = Ranks({.ranks = 2, .steps = 4}, {}, {0, 1});
  int64_t shift = 0;
  for (trace::DeviceOp& op : ranks->at(1).ops) op.begin_ns += op.collective != trace::kNoIndex ? (shift += 300'000) : 0;
  const auto built = trace::BuildKinetoJob(*std::move(ranks), {});
  ASSERT_TRUE(built.ok()) << Message(built.status());
  EXPECT_EQ(Counters(built->job), "unmatched_collectives=4 ");
}

TEST(DdpShape, PausesOfOneStepAddUp) {
  const auto seconds = [](const std::vector<Fault>& faults) {
    const auto ranks = Ranks({.ranks = 1, .steps = 2}, faults, {0});
    EXPECT_TRUE(ranks.ok()) << Message(ranks.status());
    return 1e-9 * static_cast<double>(ranks->front().ops.back().begin_ns - ranks->front().ops.front().begin_ns);
  };
  const Fault gc = ParseFault("gc:share=1,seconds=1").value();
  EXPECT_NEAR(seconds({gc}) - seconds({}), 1 * 2, 0.1);
  EXPECT_NEAR(seconds({gc, gc, gc}) - seconds({}), 3 * 2, 0.1);
}

TEST(DdpShape, WhatCanNotBeIsRefused) {
  const std::string folder = trace::TempPath("refused");
  EXPECT_EQ(Message(WriteDdpTraces(folder, {.ranks = 0}, {}, 1)), "ranks must be 1 to 65536, found 0");
  EXPECT_EQ(Message(WriteDdpTraces(folder, {.kernels = 5}, {}, 1)),
            "kernels must be at least three for each of 4 buckets, found 5");
  EXPECT_THAT(Message(WriteDdpTraces(folder, {}, {ParseFault("stage").value()}, 1)),
              testing::HasSubstr("has no stages"));
  EXPECT_EQ(Message(WriteDdpTraces(folder, {}, {ParseFault("worker:dp=8").value()}, 1)),
            "fault worker: dp is 8, expected 0 to 7");
}

}  // namespace
}  // namespace lockstep::synth
