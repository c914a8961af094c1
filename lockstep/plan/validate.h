// Predictions beside what was measured.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/plan/calibration.h"
#include "lockstep/plan/measured.h"

namespace lockstep::plan {

struct ValidateOptions {
  bool rows = false;  // add the predictions themselves
};

// What was assumed of rows; and which take twenty times as long as predicted, or a twentieth: a unit may be to blame.
std::vector<SkippedRow> AssumedOf(const MeasuredTable& table, const Calibration& calibration);

// {n, predicted, skipped [{row, why}], assumed [{row, what}], mape, median, p90, bias, coverage80, families {name: the
// same}, memory {n, mape, oom_right, oom_total, feasible_rejected}, ranking [{group, n, tau, regret}], rows [{id,
// step_time_s, lo80, hi80, mem_gib, mem_total_gib, fits}]}. mem_gib: without the driver and what allocators lose.
// Shares, not percent. bias: of predicted over measured. A group has five or more layouts of one model on one machine
// by one stack; runs of the same layout count as their mean; tau is Kendall's, and regret what the layout with the
// fastest prediction takes beyond the fastest. The interval is that of the family, where the calibration knows it, else
// that of what no fit has seen.
Json ValidateReport(const MeasuredTable& table, const Calibration& calibration, const ValidateOptions& options);

}  // namespace lockstep::plan
