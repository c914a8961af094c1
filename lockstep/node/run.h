// `lockstep run`: coordinator, agent and serve of one node in one process and one loop. The workers belong to the
// starter and outlive it.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/node/options.h"

namespace lockstep::node {

// Starts the job and watches it to its end. The value is the exit status of `lockstep run` (control::kExitDone and
// its like). An error means that it did not start: bad input, no Python, no memory.
absl::StatusOr<int> RunJob(const RunOptions& options);

// Goes on with a run whose watcher is gone: adopts its workers, which ran on. Of `options` only the view and what
// kept_options.h has are followed; the rest is as the run began.
absl::StatusOr<int> ResumeJob(const std::string& run_dir, const RunOptions& options);

}  // namespace lockstep::node
