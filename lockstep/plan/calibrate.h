// Fits the rates of all hardware and the habits of all stacks at once to measured runs. A figure is what is usual for
// it, plus what is usual for its kind of stack, plus its own; each of these is pulled towards zero, so that what no run
// tells is taken from the nearest that some do (a hierarchical prior). Levenberg-Marquardt on the logarithm of measured
// over predicted, with a cost of Student's, so that a run of another kind does not bend the rest; each family counts as
// the root of its runs. Deterministic.
//
//   const Calibration calibration = Calibrate(runs, known, nullptr).calibration;
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/plan/calibration.h"
#include "lockstep/plan/interval.h"
#include "lockstep/plan/measured.h"

namespace lockstep::plan {

using Runs = std::vector<const MeasuredRun*>;  // with a measured time

// Of each run log(measured / predicted).
std::vector<double> Residuals(const Runs& runs, const Calibration& calibration);
double MeanError(const Runs& runs, const Calibration& calibration);

// Of each hardware and stack that is known, whether or not it is among the runs. `base`: of other runs, which is
// changed as far as these runs say so; null: begins at what is usual.
Calibration Fit(const Runs& runs, const Known& known, const Calibration* base);
// By rates that were fitted without the part that a run belongs to: log(measured / predicted), and how sure that fit is
// (DoubtOf, interval.h).
std::vector<LeftOut> PredictWithout(const Runs& runs, const Known& known, const Calibration* base,
                                    const std::function<std::string(const MeasuredRun&)>& part_of);
// Fitted to all. The spread of a family is that without a fifth of its runs, and the interval of what no fit has seen
// that without whole families; that of a base is kept.
struct Calibrated {
  Calibration calibration;
  std::vector<LeftOut> without_fold, without_family;  // of each run
};
Calibrated Calibrate(const Runs& runs, const Known& known, const Calibration* base);

}  // namespace lockstep::plan
