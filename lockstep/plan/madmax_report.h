// Rows of outputs of MAD-Max's own program, computed anew, and how far ours are from them.
//
//   LS_ASSIGN_OR_RETURN(const Json report, CompareMadmax("madmax_configs.json", "madmax_golden.csv"));
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::plan {

// {rows, max_rel_iter_ms, max_rel_exposed_ms, worst {row, model, system, iter_ms [ours, theirs], exposed_ms [ours,
// theirs]}, skipped [{row, why}]}. Relative to theirs; of an exposure below a thousandth of its iteration, which is
// what rounding leaves of none, relative to that thousandth. No row's output is looked at before the row is computed.
// configs: {models {path: ...}, systems {path: ...}}; golden: columns model, system, system_cfg, task (JSON), variant,
// iter_ms, exposed_ms. kInvalidArgument: a file of another form.
absl::StatusOr<Json> CompareMadmax(const std::string& configs, const std::string& golden);

}  // namespace lockstep::plan
