// What Prometheus scrapes, from the documents that `lockstep status` and `lockstep incidents` print: a rendering, no
// second computation. Invariants: text format 0.0.4; metrics in the order of docs/metrics.md; the same documents give
// the same bytes. What a document does not hold (a loss nobody reported, a checkpoint before the first) is left out
// rather than invented. Pure. Cost: about 10 us for 4 ranks.
//
//   RenderMetrics(status, incidents)   // "# HELP lockstep_up ...\n# TYPE lockstep_up gauge\nlockstep_up 1\n..."
#pragma once

#include <string>

#include "lockstep/base/report.h"

namespace lockstep::serve {

// status: control::StatusReport, or null before the first one. incidents: control::IncidentsReport.
std::string RenderMetrics(const Json& status, const Json& incidents);

}  // namespace lockstep::serve
