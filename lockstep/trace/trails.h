// The trails that collectors keep in processes (record/trail.h), of a job that runs, hangs or is over.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

inline constexpr char kTrailSuffix[] = ".trail";

// Files named by themselves, and all trails of directories and of runs' directories. Of several trails of a rank counts the one that was begun
// last; older epochs are left out and counted. Clocks of different hosts are fitted to each other by the ends of
// collectives. Errors: nothing there can be read; a file among others that can't be is listed as damaged.
absl::StatusOr<CommLog> ReadTrails(const std::vector<std::string>& paths);
bool HasTrails(const std::string& path);

}  // namespace lockstep::trace
