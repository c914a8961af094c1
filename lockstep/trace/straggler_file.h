// A job from a file of the straggler schema: Parquet, CSV or CSV.gz, told apart by their first bytes.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler_sink.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// The job's counters are those of its rows and of its graph. Errors name the file, and where they can the row.
absl::StatusOr<TracedJob> ReadStragglerJob(const std::string& path, const StragglerMeta& meta,
                                           std::vector<StepRange> steps, size_t threads = 1);

}  // namespace lockstep::trace
