// The timelines of a job, to look at in Perfetto: as it was, as it would have been had every op been ideal, and the
// difference. Processes are data-parallel ranks; each stage has a thread for its compute, four for its transfers and
// one for its collectives. Steps follow each other with a tenth of a step between.
//
// Of a large job a timeline has some steps, and of a larger one some ranks too: Perfetto is a page of a browser, which
// has to hold all of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::explain {

inline constexpr size_t kMostSlices = 1'000'000;  // of a file: 150 MB of JSON, 24 MB gzipped

// What of a job timelines have: of steps the slowest, of data-parallel ranks those that cost most; of both, as many
// that are nearest to the median, to compare them with.
struct TimelineChoice {
  std::vector<size_t> steps, dps;  // indices, ascending
  std::string left_out;            // a sentence; empty: all is there
};
TimelineChoice ChooseSlices(const trace::TracedJob& job, const WhatIf& analysis, size_t most = kMostSlices);

// Writes timeline-original.json.gz, timeline-ideal.json.gz and timeline-difference.json.gz. Slices of communication are
// transfers, from the last peer's start. In the difference, which has the original's times, there are only ops that
// took longer than ideal, by what they took longer ("excess"), and the waits for peers ("wait").
absl::Status WriteTimelines(const std::string& directory, const trace::TracedJob& job, const WhatIf& analysis,
                            const TimelineChoice& choice);

}  // namespace lockstep::explain
