// How far a prediction may be from what nobody has measured yet, neither its software nor its model: 80 % of the
// logarithms of measured over predicted lie within plus or minus sqrt(scatter^2 + (doubt x d)^2). d is what the
// standard deviations of the fitted figures (Rates::unsure) make of this run: where habits that no run has told decide
// a step, its interval is wide. Pure.
#pragma once

#include <span>

#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// d: the root of the sum of (elasticity x standard deviation)^2 over all figures, as if they were independent. Requires
// a valid workload. Cost: as many predictions as there are figures.
double DoubtOf(const Workload& workload, const Rates& rates);
double HalfWidthOf(const Workload& workload, const Rates& rates);

// A run, predicted by a fit that has not seen its kind.
struct LeftOut {
  double residual = 0, doubt = 0;  // log(measured / predicted); d
  double weight = 1;
};
struct Interval {
  double scatter = 0, doubt = 0;
};
// With the least score of 80 % intervals (Gneiting and Raftery, JASA 102, 2007, section 6.2): the width, and ten times
// what a run lies outside. Deterministic: the best of a grid.
Interval FitInterval(std::span<const LeftOut> runs);

}  // namespace lockstep::plan
