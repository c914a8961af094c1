// What more of a machine's figure, or another rate, would gain: elasticities of the time of a step. Pure.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// {"machine.nic_gb_s": -0.03, "rates.gemm": -0.61, ...}: d log(step) / d log(figure), by keys of presets/plan/. Figures
// that the machine lacks, and rates of 0, are left out.
Json SensitivitiesJson(const Workload& workload, const Rates& rates, bool of_rates);

}  // namespace lockstep::plan
