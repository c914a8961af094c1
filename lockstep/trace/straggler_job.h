// A job from rows of the straggler schema: lanes are (step, data-parallel rank), the template has the ops of all
// stages. Dependencies follow the what-if straggler analysis (OSDI'25); docs/models/explain.md has them as rules.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/trace/straggler.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// Takes the rows apart to save memory; the same job on any number of threads. kInvalidArgument names the op and lane: a
// count that fits no schedule. kAlreadyExists: some rows are there twice; a sink that refuses them knows which.
absl::StatusOr<TracedJob> BuildStragglerJob(StragglerRows rows, const StragglerMeta& meta, size_t threads = 1);

}  // namespace lockstep::trace
