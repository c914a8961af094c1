// From the stacks of a rank to what the hang detector asks: is it in a collective, can it go on by itself, where is it?
// Pure. The frames it knows are those of torch 1.13 with gloo (testdata/*.stacks are real dumps) and the names that
// NCCL and CUDA export.
#pragma once

#include "lockstep/agent/stacks.h"
#include "lockstep/detect/hang.h"

namespace lockstep::agent {

// `rank` and `at` of the result are left to the caller.
detect::StackSample Classify(const StackDump& native, const PythonStack& python);

}  // namespace lockstep::agent
