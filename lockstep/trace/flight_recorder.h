// Dumps of PyTorch's Flight Recorder, one file per rank, pickle or JSON: which collectives and transfers a rank
// launched last, and how far they came. docs/formats/flight_recorder.md says what is taken from which field.
//
//   LS_ASSIGN_OR_RETURN(const CommLog log, ReadFlightRecorder(FindFlightRecorderFiles({"dumps/"})));
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// A directory stands for the files in it that begin as a pickle or as JSON, the others are counted (other_files). A
// file that is named by itself must be a dump.
//
// Dumps that an earlier incident left beside are left out; where the others are not of one moment either, there are no
// ops. `blind_spot` says so (dump_moments.h).
//
// kInvalidArgument: no dump at all, or a named file that is none; two files of one rank; a file that does not name its
// rank (the number behind "rank", or else its last: rank_3.json, nccl_trace_rank_3_node10), or one that its groups
// don't have. Of a directory, a damaged file is told of in `damaged`.
absl::StatusOr<CommLog> ReadFlightRecorder(const std::vector<std::string>& paths);

}  // namespace lockstep::trace
