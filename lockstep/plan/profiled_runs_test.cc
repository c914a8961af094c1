#include "lockstep/plan/profiled_runs.h"

#include <gmock/gmock.h>

#include <cmath>

#include "lockstep/plan/calibrate.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

Known KnownOf(const Workload& work) {
  Stack stack;
  stack.name = "s", stack.kind = "k";
  return {Machines({{work.machine, {}}}), Stacks({stack}), ModelNotes(), cluster::Presets(".")};
}

Workload Laid() {
  Workload work = TestWorkload();
  work.stack = "s";
  EXPECT_TRUE(TakeLayout("tp=2,zero=1", work).ok());
  return work;
}

// What a job with other rates would show in a profile, begun at the usual ones.
Rates Fitted(const Workload& work, const Rates& truth) {
  const Known known = KnownOf(work);
  const Calibration base{{{work.machine.rates, Rates{}}}, known.stacks};
  MeasuredParts measured;
  measured.parts = PredictParts(work, truth);
  const std::vector<MeasuredRun> profile = ProfiledRuns(measured, work, *base.Of(work));
  Runs runs;
  for (const MeasuredRun& run : profile) runs.push_back(&run);
  return *Calibrate(runs, known, &base).calibration.Of(work);
}

TEST(ProfiledRuns, ChangeTheRatesThatTheyTellOf) {
  const Workload work = Laid();
  Rates truth;
  truth.gemm = .61;
  const Rates fitted = Fitted(work, truth);
  EXPECT_LT(fitted.gemm, .7) << "the sizes at which half is lost take a share of it";
  const double matrix = PredictParts(work, truth)[StepPart::kMatrix];
  EXPECT_NEAR(PredictParts(work, fitted)[StepPart::kMatrix] / matrix, 1, .02);
  EXPECT_NEAR(fitted.stream, Rates{}.stream, .01) << "element-wise work is as usual";
  EXPECT_NEAR(fitted.scale_up, Rates{}.scale_up, .02);
  EXPECT_NEAR(fitted.gemm_fp4, Rates{}.gemm_fp4, 1e-9) << "nothing is told of it";
  EXPECT_EQ(fitted.scatter, Rates{}.scatter) << "that of the base";
}

TEST(ProfiledRuns, TheStepIsPredictedAfterwards) {
  const Workload work = Laid();
  Rates truth;
  truth.gemm = .62, truth.scale_up = .5, truth.stream = .7, truth.flash = .5;
  const double before = PredictParts(work, Rates{}).total(), measured = PredictParts(work, truth).total();
  const double after = PredictParts(work, Fitted(work, truth)).total();
  EXPECT_GT(std::abs(std::log(before / measured)), .1);
  EXPECT_LT(std::abs(std::log(after / measured)), .02);
}

TEST(ProfiledRuns, WhatIsSmallOrHiddenIsNoRun) {
  const Workload work = Laid();
  MeasuredParts measured;
  measured.parts = PredictParts(work, Rates{});
  measured.parts[StepPart::kOptimizer] = 1e-6;
  for (const MeasuredRun& run : ProfiledRuns(measured, work, Rates{})) {
    EXPECT_NE(run.id(), "optimizer");
    EXPECT_NE(run.id(), "context") << "there is none";
    EXPECT_GT(run.Measured().step_s, .01 * measured.parts.total());
  }
}

}  // namespace
}  // namespace lockstep::plan
