// The timelines of a job, to look at in Perfetto: as it was, as it would have been had every op been ideal, and the
// difference. Processes are data-parallel ranks; each stage has a thread for its compute, four for its transfers and
// one for its collectives. Steps follow each other with a tenth of a step between.
#pragma once

#include <string>

#include "lockstep/base/status.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::explain {

// Writes timeline-original.json.gz, timeline-ideal.json.gz and timeline-difference.json.gz. Slices of communication are
// transfers, from the last peer's start. In the difference, which has the original's times, there are only ops that
// took longer than ideal, by what they took longer ("excess"), and the waits for peers ("wait").
absl::Status WriteTimelines(const std::string& directory, const trace::TracedJob& job, const WhatIf& analysis);

}  // namespace lockstep::explain
