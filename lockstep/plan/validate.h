// Predictions beside what was measured.
#pragma once

#include <map>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/plan/measured.h"
#include "lockstep/plan/rates.h"

namespace lockstep::plan {

using RatesByName = std::map<std::string, Rates>;  // by Machine::rates

struct ValidateOptions {
  bool rows = false;  // add the predictions themselves
};

// {n, predicted, skipped [{row, why}], mape, median, p90, bias, coverage80, families {name: the same}, memory {n, mape,
// oom_right, oom_total, feasible_rejected}, ranking [{group, n, tau, regret}], rows}. Shares, not percent. bias: of
// predicted over measured. A group has five or more runs that differ in nothing but their layout; tau is Kendall's, and
// regret what its fastest prediction takes beyond its fastest run.
Json ValidateReport(const MeasuredTable& table, const RatesByName& rates, const ValidateOptions& options);

}  // namespace lockstep::plan
