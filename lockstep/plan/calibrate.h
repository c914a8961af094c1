// Fits the rates of one kind of hardware to measured runs: every rate in turn is moved while that lowers the error, in
// ever smaller moves, from several starts. Deterministic. The error of a run is |log(measured / predicted)|, above a
// quarter by its root, so that runs of another kind do not bend the rest; each family counts as the root of its runs.
//
//   const Rates rates = Calibrate(runs, Rates{});
#pragma once

#include <span>
#include <vector>

#include "lockstep/plan/measured.h"
#include "lockstep/plan/rates.h"

namespace lockstep::plan {

using Runs = std::vector<const MeasuredRun*>;  // with a measured time

double MeanError(const Runs& runs, const Rates& rates);
Rates Fit(const Runs& runs, const Rates& start);

// Of each run log(measured / predicted), predicted by rates that were fitted without its fold.
std::vector<double> CrossValidate(const Runs& runs, const Rates& start, int folds = 5);
// Fitted to all, with the residuals that cross-validation found.
Rates Calibrate(const Runs& runs, const Rates& start);

}  // namespace lockstep::plan
