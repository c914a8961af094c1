#include "lockstep/trace/untold_transfers.h"

#include <algorithm>

#include "lockstep/trace/kineto_told.h"

namespace lockstep::trace {

bool IsUntoldTransfer(const Collective& one) {
  return one.peer < 0 && one.group == kNoIndex && IsTransferKernel(one.name);
}

bool MayBeStages(const TracedJob& job) {
  return job.dp > 1 && std::ranges::find(job.counters, kUntoldTransfers, &Counter::name) != job.counters.end();
}

}  // namespace lockstep::trace
