// `lockstep coordinator`: the leading side of a job on a machine of its own, with no workers. Of several with one
// journal in PostgreSQL one leads and the others stand in: they take over when it is gone.
#pragma once

#include "lockstep/base/status.h"
#include "lockstep/node/options.h"

namespace lockstep::node {

// Listens on options.nodes.endpoint, waits for the agents, leads the job to its end. The value is the job's exit
// status, or kExitLost for a leader in whose place another one leads. An error means that it did not begin.
absl::StatusOr<int> Coordinate(const RunOptions& options);
// Goes on with the job whose coordinator died.
absl::StatusOr<int> ResumeCoordinating(const std::string& run_dir, const RunOptions& options);

}  // namespace lockstep::node
