// Rows of garbage collection and of optimizers that are longer on some workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using trace::OpType;

const synth::JobShape kShape{.dp = 4, .pp = 2, .microbatches = 4, .steps = 12};  // steps of 3.5 s

// Rows of a type take so much more where `seconds` says so.
trace::StragglerRows Longer(OpType type, const std::function<double(const trace::StragglerRow&)>& seconds) {
  trace::StragglerRows rows = synth::Generate(kShape, {}, 1).value();
  EachRow(rows, [&](trace::StragglerRow& row) {
    if (row.type == type) row.duration += static_cast<float>(seconds(row));
  });
  return rows;
}

TEST(Tail, CollectionsOfOneWorkerAreNamed) {
  const auto causes =
      CausesOf(Longer(OpType::kGc, [](const auto& row) { return row.dp == 2 && row.stage == 0 ? 0.5 : 0; }), kShape);
  ASSERT_EQ(TextOf(causes), "gc 2");
  EXPECT_NEAR(causes[0].gain_s, 0.5, 0.01);
}

TEST(Tail, CollectionsNowAndThenAreNamed) {
  const auto causes = CausesOf(
      Longer(OpType::kGc, [](const auto& row) { return (row.step + row.dp) % 4 == 0 && row.stage == 0 ? 0.8 : 0; }),
      kShape);
  ASSERT_THAT(NamesOf(causes), testing::ElementsAre("gc"));
  EXPECT_EQ(causes[0].suspects.size(), 4U);
  EXPECT_NEAR(causes[0].gain_s, 0.8, 0.02);
}

// As planned: nobody waits for another.
TEST(Tail, CollectionsOfAllAtOnceAreNobodys) {
  EXPECT_EQ(TextOf(CausesOf(Longer(OpType::kGc, [](const auto& row) { return row.step % 3 == 0 ? 0.8 : 0; }), kShape)),
            "");
}

// So much more for an op type of a data-parallel rank, on one stage or (-1) all.
std::vector<Cause> CausesOfSlow(OpType type, int dp, int stage) {
  const trace::TracedJob job = JobOf(synth::Generate(kShape, {}, 1).value(), kShape);
  std::vector<float> transfers = job.transfers;
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = 0; lane < job.lanes.size(); ++lane)
      if (job.ops[op].type == type && job.lanes[lane].dp == dp && (stage < 0 || job.ops[op].stage == stage))
        transfers[job.graph.Cell(op, lane)] += 0.4F;
  const trace::TracedJob slow = Recorded(job, transfers, job.delays);
  return FindCauses(slow, WhatIf(slow)).found;
}

TEST(Tail, ASlowEmbeddingIsALinkOfItsPipeline) {
  const auto causes = CausesOfSlow(OpType::kEmbeddingGradsAllReduce, 2, -1);
  ASSERT_EQ(TextOf(causes), "link 2 6");
  EXPECT_NEAR(causes[0].gain_s, 0.4, 0.02);
}

TEST(Tail, ASlowLayernormIsItsWorkers) {
  const auto causes = CausesOfSlow(OpType::kLayernormGradsAllReduce, 1, 0);
  ASSERT_EQ(TextOf(causes), "ring 1");
  EXPECT_NEAR(causes[0].gain_s, 0.4, 0.05);
}

TEST(Tail, ASlowOptimizerIsNamed) {
  const auto causes = CausesOf(
      Longer(OpType::kOptimizer, [](const auto& row) { return row.dp == 1 && row.stage == 0 ? 0.4 : 0; }), kShape);
  ASSERT_EQ(TextOf(causes), "optimizer 1");
  EXPECT_NEAR(causes[0].gain_s, 0.4, 0.01);
  EXPECT_THAT(causes[0].evidence[0], testing::HasSubstr("in 12 of 12 steps"));
}

TEST(Tail, TwoSlowOptimizersThatHideEachOtherAreNamed) {
  const auto causes = CausesOf(
      Longer(OpType::kOptimizer, [](const auto& row) { return row.dp < 2 && row.stage == 1 ? 0.4 : 0; }), kShape);
  ASSERT_EQ(NamesOf(causes).size(), 1U);
  EXPECT_EQ(causes[0].kind, CauseKind::kOptimizer);
  EXPECT_EQ(causes[0].suspects.size(), 2U);
  EXPECT_NEAR(causes[0].gain_s, 0.4, 0.01);
}

}  // namespace
}  // namespace lockstep::explain
