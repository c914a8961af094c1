// The stacks that agents keep of an incident (incident_N/stacks.txt), of one node or of several:
// docs/formats/stacks.md.
//
//   if (HasStacks(path)) LS_ASSIGN_OR_RETURN(const std::vector<ProcessStack> stacks, ReadStackFiles({path}));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/process_stack.h"

namespace lockstep::trace {

// `path` is for messages: kInvalidArgument, with the line, for text of another form.
absl::StatusOr<std::vector<ProcessStack>> ParseStacks(std::string_view text, const std::string& path);

// By how a file begins; of a directory, one of its files.
bool HasStacks(const std::string& path);
// Files, and directories of them (other files there are left aside). kInvalidArgument: no such file among them, or two
// stacks of one trainer, which are of different moments.
absl::StatusOr<std::vector<ProcessStack>> ReadStackFiles(const std::vector<std::string>& paths);

}  // namespace lockstep::trace
