// What NCCL's Inspector (a profiler plugin that comes with NCCL from 2.28 on) wrote: per process a file, with a line
// of JSON for each collective that has ended. docs/formats/inspector.md has what is taken from which field.
//
// Times are there in verbose dumps only. Without them a log says how long each rank was in a collective, not when.
//
//   if (HasInspector(path)) LS_ASSIGN_OR_RETURN(const CommLog log, ReadInspector({path}));
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// By how a file begins; of a directory, one of its files.
bool HasInspector(const std::string& path);
// Files, and directories of them, whose other files are counted. Ranks of the job are those of the largest
// communicator, of several the one that was written of last; processes that are not in it are counted and left out.
//
// kInvalidArgument: a file that is named by itself without any line that can be read, or no such line at all. Of a
// directory, such a file is told of in `damaged`. A line that can't be read is counted.
absl::StatusOr<CommLog> ReadInspector(const std::vector<std::string>& paths);

}  // namespace lockstep::trace
