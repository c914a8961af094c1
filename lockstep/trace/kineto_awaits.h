// Where a stage of a pipeline waits for what it receives, as far as that is not seen: what it sends on it has made of
// what it received, and what the last stage sends back, too.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/trace/kineto_steps.h"

namespace lockstep::trace {

// The communications of a role, of one direction. returned: of the last stage, what it sends back instead of on.
void AwaitReceives(RoleForm& form, const std::vector<size_t>& received, const std::vector<size_t>& sent,
                   const std::vector<size_t>& returned);

// Where model chunks wrap around, so that the n-th that is received is not the n-th that is sent: a receive is posted
// one pass ahead, so the segment behind that waits beside which it began. Not before what was received before it in its
// direction, nor where another receive was seen to be awaited.
void AwaitReceivesBeside(RoleForm& form, const std::vector<size_t>& received, const std::vector<size_t>& others);

}  // namespace lockstep::trace
