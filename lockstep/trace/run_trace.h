// A run under Lockstep as a trace of its ranks: what a profiler would have told (trace/kineto.h), from what the run
// notes anyhow. Its steps and their parts come from RUNDIR/records (the script's Checkpoint), its communication from
// RUNDIR/trails (the collectors).
//
// What ranks computed is not recorded; it is what lies between: from where the script could go on to the next launch of
// a communication or the next part of the step. Whether the script waited for a communication is told by the times: if
// what follows keeps a steadier distance to its end than to what was before it, it did.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::trace {

bool IsRun(const std::string& directory);  // by its run.json; a copy, by having both
// That of its job, by its run.json; empty: not told.
std::string NameOfRun(const std::string& directory);
// One per rank that both tell of, by rank; of the steps in the trails. kInvalidArgument: nothing of it can be read, or
// there is no step with communication.
absl::StatusOr<std::vector<KinetoRank>> ReadRun(const std::string& directory);

}  // namespace lockstep::trace
