// Sends and receives of profiler files that do not tell between whom they are: of old profilers, or replayed by a CUDA
// graph. Where nothing else tells, ranks that have some may be stages of a pipeline, which need not take as long as
// each other.
#pragma once

#include "lockstep/trace/kineto.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

inline constexpr char kUntoldTransfers[] = "untold_transfers";  // counter

// Its peer is any other rank; or, of an exchange of all with all, all of them are.
bool IsUntoldTransfer(const Collective& one);

// So nobody is held against this data-parallel rank, nor it against others.
inline bool MayBeStage(const TracedJob& job, int dp) {
  return !job.may_be_stage.empty() && job.may_be_stage[static_cast<size_t>(dp)];
}

}  // namespace lockstep::trace
