// What `lockstep explain --out DIR` writes beside the report: heatmaps, and one page that holds everything.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::explain {

// Per step: [{step, measured_s, without_delays_s, ideal_s, slowdown, by_dp_rank [S of each rank]}].
Json StepsReport(const WhatIf& analysis);

// Writes report.json, steps.json, heatmap-workers.svg, heatmap-steps.svg and index.html, which shows them and needs
// nothing else. The directory is made if it is missing.
absl::Status WritePage(const std::string& directory, const Json& report, const Json& steps);

}  // namespace lockstep::explain
