// A layout as the flags of a framework: Megatron-LM's command line, torchtitan's TOML. Only what the layout, the
// batch and the model's shape decide; data, learning rate and the rest are the user's.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// kInvalidArgument: a framework that is neither "megatron" nor "torchtitan", or a workload that it can't carry out,
// whatever its layout.
absl::Status CheckEmit(std::string_view framework, const Workload& workload);
// The stack (stacks.h) whose habits the framework has.
std::string_view StackOf(std::string_view framework);
// Where the flags may not give what is predicted; empty: nowhere.
std::string EmitNote(std::string_view framework, const Workload& workload);
// kInvalidArgument: what CheckEmit says, or a layout that it can't carry out, and what of it.
absl::StatusOr<std::string> EmitFlags(std::string_view framework, const Workload& workload);

}  // namespace lockstep::plan
