// What ranks told of their communication, from files of whichever tool.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// One file with the status of NCCL's RAS, which is of the whole job, as JSON (ras.h) or text (ras_text.h); or files of
// NCCL's Inspector (inspector.h), one per process, trails of collectors (trails.h), or dumps of Flight Recorders
// (flight_recorder.h), one per rank, and directories of them. What files hold tells which, not their names. Errors name
// the file.
absl::StatusOr<CommLog> ReadCommFiles(const std::vector<std::string>& paths);

}  // namespace lockstep::trace
