#include "lockstep/plan/gap_report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/plan/report.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;

Candidate Laid(const std::string& layout) {
  Workload work = TestWorkload();
  EXPECT_TRUE(TakeLayout(layout, work).ok());
  return Predict(work, Rates{});
}

// What was predicted, with so much more of two parts.
MeasuredParts MeasuredLike(const Candidate& one, double tensor, double optimizer) {
  MeasuredParts measured;
  measured.parts = PredictParts(one.workload, Rates{});
  measured.parts[StepPart::kTensor] += tensor;
  measured.parts[StepPart::kOptimizer] += optimizer;
  measured.kernels = {{"gemm", StepPart::kMatrix, .9}};
  measured.ranks = {{0, .9, .1}, {1, 1.0, 0}};
  measured.steps = {3, 4};
  return measured;
}

TEST(GapReport, TellsEachTermAndAddsUpOnBothSides) {
  const Candidate one = Laid("tp=2,pp=2");
  const double step = one.step.total().value;
  const Json report = GapReport(one, Rates{}, MeasuredLike(one, .2 * step, -.01 * step));
  double measured = 0, predicted = 0;
  for (const Json& term : report["terms"]) {
    measured += term["measured_s"].get<double>(), predicted += term["predicted_s"].get<double>();
    EXPECT_THAT(term["difference_s"].get<double>(),
                DoubleNear(term["measured_s"].get<double>() - term["predicted_s"].get<double>(), 1e-12));
  }
  EXPECT_THAT(measured, DoubleNear(1.19 * step, 1e-9));
  EXPECT_THAT(measured, DoubleNear(report["step_time_s"]["measured"].get<double>(), 1e-9));
  EXPECT_THAT(predicted, DoubleNear(step, 1e-9));
  const Json& first = report["terms"].front();
  EXPECT_EQ(first["term"], "tensor");
  EXPECT_THAT(first["difference_s"].get<double>(), DoubleNear(.2 * step, 1e-9));
  // mfu is as 1 / step: without that term the step takes .99 of the planned one.
  EXPECT_THAT(first["mfu_gain"].get<double>(),
              DoubleNear(Mfu(one.workload, {.99 * step}) - Mfu(one.workload, {1.19 * step}), 1e-9));
  EXPECT_EQ(report["terms"].back()["term"], "optimizer");
  EXPECT_EQ(report["slowest_ranks"][0]["rank"], 1);
}

TEST(GapReport, TellsOfGroupsThatTheLayoutDoesNotHave) {
  const Candidate one = Laid("tp=2,pp=2");
  MeasuredParts measured = MeasuredLike(one, 0, 0);
  const auto notes = [&] { return OneLine(GapReport(one, Rates{}, measured)["notes"]); };
  EXPECT_THAT(notes(), testing::Not(testing::HasSubstr("is it that of the job")));
  measured.odd_groups = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  EXPECT_THAT(notes(), testing::HasSubstr("ranks 0, 1, 2, 3 communicate in a group that this layout does not have (2 "
                                          "such groups): is it that of the job?"));
}

TEST(GapReport, AsText) {
  const Candidate one = Laid("tp=2,pp=2");
  Json report = GapReport(one, Rates{}, MeasuredLike(one, .1, 0));
  for (const char* part : {"machine", "accelerators", "layout", "counters"}) report.erase(part);
  EXPECT_EQ(
      RenderText(report),
      R"(verdict        steps take 2.381 s, 54.5 % MFU; the plan says 2.281 s (1.868 to 2.786), 56.9 %, within its interval; most beyond the plan: tensor, 0.1653 s instead of 0.06526
step_time_s
  measured   2.3811
  predicted  2.2811
  lo80       1.8676
  hi80       2.7861
mfu
  measured   0.5454
  predicted  0.5693
terms
  term             measured_s  predicted_s  difference_s  mfu_gain
  tensor           0.1653      0.0653       0.1           0.0239
  matrix products  1.6154      1.6154       0             0
  attention        0.1938      0.1938       0             0
  element-wise     0.0384      0.0384       0             0
  launches         0.0782      0.0782       0             0
  pipeline         0.0232      0.0232       0             0
  data             0.000698    0.000698     0             0
  bubble           0.2345      0.2345       0             0
  stragglers       0.0068      0.0068       0             0
  optimizer        0.0148      0.0148       0             0
  between steps    0.01        0.01         0             0
kernels
  kernel  term             seconds
  gemm    matrix products  0.9
slowest_ranks
  rank  computes_s  waits_s
  1     1           0
  0     0.9         0.1
trace
  ranks                   2
  of                      16
  steps                   2
  communications_matched  1
notes          2 of 16 ranks are given: stages differ, so give one rank of each at least
)");
}

}  // namespace
}  // namespace lockstep::plan
