// The commands of the cluster's scheduler (base/child.h), with one line for what went wrong. Blocks; for threads beside
// the coordinator's.
//
//   LS_ASSIGN_OR_RETURN(std::string out, RunCommand({"scontrol", "show", "job", "17"}, {.at_most = Seconds{20}}));
#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/child.h"
#include "lockstep/base/status.h"

namespace lockstep::schedule {

// What it wrote to standard output, when it ended with status 0. An error names the program and what it said, or that
// it took too long (kDeadlineExceeded) or was stopped (kCancelled).
absl::StatusOr<std::string> RunCommand(const std::vector<std::string>& arguments, const ChildOptions& options = {},
                                       const std::stop_token& stop = {});

// Starts a program that outlives us: in a session of its own, deaf to signals that can be kept out, with no streams.
absl::Status Detach(const std::vector<std::string>& arguments);

}  // namespace lockstep::schedule
