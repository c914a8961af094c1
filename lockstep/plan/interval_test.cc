#include "lockstep/plan/interval.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>
#include <vector>

#include "lockstep/plan/step.h"
#include "lockstep/plan/test_workload.h"

namespace lockstep::plan {
namespace {

using testing::DoubleNear;

size_t IndexOf(std::string_view name) {
  size_t f = 0;
  while (RateFields()[f].name != name) ++f;
  return f;
}

// Of one figure alone the elasticity times its deviation; of two the root of the sum of squares.
TEST(Interval, DoubtByHand) {
  const Workload work = TestWorkload();
  Rates rates;
  EXPECT_EQ(DoubtOf(work, rates), 0) << "sure of all figures";
  const double half = HalfWidthOf(work, rates);
  EXPECT_DOUBLE_EQ(half, rates.scatter);
  Rates longer = rates;
  longer.kernels *= std::exp(1e-3);
  Rates wider = rates;
  wider.glue_bytes *= std::exp(1e-3);
  const double once = PredictStep(work, rates).total().value;
  const double launches = std::log(PredictStep(work, longer).total().value / once) / 1e-3;
  const double glue = std::log(PredictStep(work, wider).total().value / once) / 1e-3;
  rates.unsure[IndexOf("glue_bytes")] = .5;
  EXPECT_THAT(DoubtOf(work, rates), DoubleNear(.5 * glue, 1e-9));
  rates.unsure[IndexOf("kernels")] = .25;
  EXPECT_THAT(DoubtOf(work, rates), DoubleNear(std::hypot(.5 * glue, .25 * launches), 1e-9));
  rates.scatter = .1, rates.doubt = 2;
  EXPECT_THAT(HalfWidthOf(work, rates), DoubleNear(std::hypot(.1, 2 * DoubtOf(work, rates)), 1e-12));
}

// Residuals that are normal with sqrt(.05^2 + d^2): 80 % lie within 1.28 of those deviations.
TEST(Interval, AFitFindsWhatMadeTheResiduals) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  std::vector<LeftOut> runs;
  for (int i = 0; i < 4000; ++i) {
    const double doubt = i % 2 == 0 ? .02 : .3;
    runs.push_back({normal(random) * std::hypot(.05, doubt), doubt});
  }
  const Interval fitted = FitInterval(runs);
  EXPECT_THAT(fitted.scatter, DoubleNear(1.28 * .05, .03));
  EXPECT_THAT(fitted.doubt, DoubleNear(1.28, .1));
  double inside = 0;
  for (const LeftOut& run : runs)
    inside += std::abs(run.residual) <= std::hypot(fitted.scatter, fitted.doubt * run.doubt);
  EXPECT_THAT(inside / 4000, DoubleNear(.8, .03));
}

}  // namespace
}  // namespace lockstep::plan
