// What is to run on this node: from the user's options to the run directory with its run.json.
#pragma once

#include "lockstep/agent/spec.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/node/options.h"

namespace lockstep::node {

// Makes the run directory. Errors: what a user can put right (no script, no Python, a directory that is taken).
absl::StatusOr<agent::RunSpec> MakeSpec(const RunOptions& options);
// What `lockstep run` would start on this node, with which environment; makes nothing. World size and ranks are those
// of a job whose nodes all bring as many ranks as this one.
absl::StatusOr<Json> DryRun(const RunOptions& options);
// Lets this process have the memory, output and connections of so many ranks open.
absl::Status AllowOpenFiles(int ranks);
// What the coordinator is to know of the job, but for its nodes.
control::JobSpec MakeJob(const RunOptions& options);
// Thirty-two random hexadecimal digits.
absl::StatusOr<std::string> MakeToken();
// Writes <run dir>/run.json.
absl::Status KeepSpec(const agent::RunSpec& spec);

}  // namespace lockstep::node
