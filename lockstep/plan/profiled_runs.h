// Parts of a profiled step as runs to calibrate by (calibrate.h): each tells of the rates that it depends on, and
// nothing of the others.
#pragma once

#include <vector>

#include "lockstep/plan/measured.h"
#include "lockstep/plan/measured_parts.h"

namespace lockstep::plan {

// Those that rates decide, and that are a hundredth of the step or more, measured and as `rates` predict them.
std::vector<MeasuredRun> ProfiledRuns(const MeasuredParts& measured, const Workload& workload, const Rates& rates);

}  // namespace lockstep::plan
