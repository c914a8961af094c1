// Sends and receives of profiler files that do not tell between whom they are. Ranks that have some may be stages of a
// pipeline, which need not take as long as each other.
#pragma once

#include "lockstep/trace/kineto.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

inline constexpr char kUntoldTransfers[] = "untold_transfers";  // counter

// Its peer is any other rank; or, of an exchange of all with all, all of them are.
bool IsUntoldTransfer(const Collective& one);

// The job has several ranks, and some such.
bool MayBeStages(const TracedJob& job);

}  // namespace lockstep::trace
