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
