#include "lockstep/trace/untold_transfers.h"

#include "lockstep/trace/kineto_told.h"

namespace lockstep::trace {

bool IsUntoldTransfer(const Collective& one) {
  return one.peer < 0 && one.group == kNoIndex && IsTransferKernel(one.name);
}

}  // namespace lockstep::trace
