#include "lockstep/plan/step_parts.h"

#include <gmock/gmock.h>

#include "lockstep/plan/layout.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;

Workload Laid(const std::string& layout, Workload work = TestWorkload()) {
  const absl::Status taken = TakeLayout(layout, work);
  EXPECT_TRUE(taken.ok()) << Message(taken);
  return work;
}

class Layouts : public testing::TestWithParam<const char*> {};

TEST_P(Layouts, PartsAddUpToTheStep) {
  const Workload work = Laid(GetParam());
  const StepParts parts = PredictParts(work, Rates{});
  EXPECT_THAT(parts.total(), DoubleNear(PredictStep(work, Rates{}).total().value, 1e-9));
  for (size_t i = 0; i < kStepParts; ++i) EXPECT_GE(parts.seconds[i], -1e-9) << StepPartName(static_cast<StepPart>(i));
}
INSTANTIATE_TEST_SUITE_P(Of, Layouts,
                         testing::Values("tp=2,pp=2", "tp=2,pp=2,recompute=full", "tp=2,recompute=selective",
                                         "tp=1,pp=4,vp=2", "tp=2,pp=4,schedule=zb-h1", "tp=2,pp=2,schedule=dualpipe",
                                         "tp=2,zero=3", "tp=2,cp=2,zero=1", "tp=1,pp=4,stages=5+4+4+3"));

// Of one stage, the products of the layers and of the output layer: with full recomputation the former once more, which
// is a third of forward and backward.
TEST(StepParts, WhatIsComputedAgainCountsToItsKind) {
  const Workload once = Laid("tp=2"), again = Laid("tp=2,recompute=full");
  const StepTime step = PredictStep(once, Rates{});
  const StepParts a = PredictParts(once, Rates{}), b = PredictParts(again, Rates{});
  EXPECT_THAT(b[StepPart::kMatrix] - a[StepPart::kMatrix], DoubleNear(step[Part::kGemm] / 3, 1e-9));
  EXPECT_THAT(b[StepPart::kTensor] - a[StepPart::kTensor], DoubleNear(step[Part::kTensor] / 2, 1e-9));
  EXPECT_THAT(b[StepPart::kOptimizer], DoubleNear(a[StepPart::kOptimizer], 1e-12));
}

// Whatever a stack makes of the hardware's rate: what selective recomputation computes again is attention, all of it.
TEST(StepParts, AttentionOfAnyStackIsToldFromTheRest) {
  for (const double habit : {.25, .6, 4.4}) {
    Rates rates;
    rates.attention = habit;
    const StepParts a = PredictParts(Laid("tp=2"), rates), b = PredictParts(Laid("tp=2,recompute=full"), rates);
    EXPECT_THAT(b[StepPart::kAttention] / a[StepPart::kAttention], DoubleNear(1 + 1 / 3.5, 1e-3))
        << habit;  // backward: 2.5
    EXPECT_GT(b[StepPart::kElementWise], a[StepPart::kElementWise]) << habit;
  }
}

// All stages but the last wait for the output layer: (p - 1) / p of it are a bubble in the mean.
TEST(StepParts, TheOutputLayerIsABubbleElsewhere) {
  Rates rates;
  rates.microbatch = 0;
  const Workload work = Laid("tp=1,pp=4");
  const StepTime step = PredictStep(work, rates);
  EXPECT_THAT(PredictParts(work, rates)[StepPart::kBubble] - step[Part::kBubble],
              DoubleNear(step[Part::kHead] * 3 / 4, 1e-9));
}

TEST(StepParts, OneStageWaitsForNoOther) {
  for (const char* layout : {"tp=1", "tp=2", "tp=4", "tp=8", "tp=2,mbs=2", "tp=4,mbs=2", "tp=2,zero=3", "tp=2,cp=2"})
    EXPECT_EQ(PredictParts(Laid(layout), Rates{})[StepPart::kBubble], 0) << layout;
}

}  // namespace
}  // namespace lockstep::plan
