// What kind of work a kernel does, by its name. The table is in kernel_kind.cc, and in docs/models/plan.md.
#pragma once

#include <string_view>

#include "lockstep/plan/step_parts.h"

namespace lockstep::plan {

// Of a kernel, copy or fill that is no communication: kMatrix, kAttention, kElementWise, kOptimizer, kCopies or
// kUnknown.
StepPart KindOfKernel(std::string_view name);

}  // namespace lockstep::plan
