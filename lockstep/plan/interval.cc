#include "lockstep/plan/interval.h"

#include <cmath>

#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kNudge = 1e-3;
constexpr double kOutside = .2;  // of the runs
constexpr double kMostScatter = .6, kMostDoubt = 3, kStep = .01;

double HalfWidth(double scatter, double doubt) { return std::hypot(scatter, doubt); }

double Score(std::span<const LeftOut> runs, const Interval& interval) {
  double score = 0;
  for (const LeftOut& run : runs) {
    const double half = HalfWidth(interval.scatter, interval.doubt * run.doubt);
    score += run.weight * (2 * half + 2 / kOutside * std::max(0.0, std::abs(run.residual) - half));
  }
  return score;
}

}  // namespace

double DoubtOf(const Workload& workload, const Rates& rates) {
  const StepTime step = PredictStep(workload, rates);
  const std::span<const RateField> fields = RateFields();
  double sum = 0;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (rates.unsure[f] == 0) continue;
    Rates other = rates;
    double& figure = other.*fields[f].member;
    figure = FromUnknown(fields[f], ToUnknown(fields[f], figure) + kNudge);
    const double slope = std::log(PredictStep(workload, other).total().value / step.total().value) / kNudge;
    sum += std::pow(slope * rates.unsure[f], 2);
  }
  return std::sqrt(sum);
}

double HalfWidthOf(const Workload& workload, const Rates& rates) {
  return HalfWidth(rates.scatter, rates.doubt > 0 ? rates.doubt * DoubtOf(workload, rates) : 0);
}

Interval FitInterval(std::span<const LeftOut> runs) {
  Interval best{.scatter = kStep};
  double least = Score(runs, best);
  for (double scatter = kStep; scatter < kMostScatter; scatter += kStep) {
    for (double doubt = 0; doubt < kMostDoubt; doubt += kStep * kMostDoubt) {
      const Interval one{scatter, doubt};
      const double score = Score(runs, one);
      if (score < least) least = score, best = one;
    }
  }
  return best;
}

}  // namespace lockstep::plan
