// The result files of the published what-if straggler analysis, as its own tools name and shape them:
// result-<trial>.json, ms-<trial>.json and mw-<trial>.json. Here a worker's slowdown is min(of its rank, of its stage),
// as there.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/what_if.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::explain {

// Below `decompose_threshold` a slowdown is not taken apart: null stands for its splits.
Json CompatResult(const WhatIf& analysis, const trace::StragglerMeta& meta, double decompose_threshold);
Json CompatStage(const WhatIf& analysis, const trace::StragglerMeta& meta);
Json CompatWorkers(const WhatIf& analysis);

inline constexpr double kDecomposeThreshold = 1.03;

// Writes the three files into a directory, which is made if it is missing.
absl::Status WriteCompat(const std::string& directory, const WhatIf& analysis, const trace::StragglerMeta& meta);

}  // namespace lockstep::explain
