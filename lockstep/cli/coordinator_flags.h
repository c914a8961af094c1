// The options that are about leading a job: of `lockstep run` on the node that leads, and of `lockstep coordinator`.
#pragma once

#include <CLI/CLI.hpp>

#include "lockstep/node/options.h"

namespace lockstep::cli {

// A file that ends in .toml, or a preset.
absl::StatusOr<control::Policy> FindPolicy(const std::string& name);

// What --policy, --plan and --inspect name.
absl::Status ReadFilesOf(node::RunOptions& options);

// Of --resume: what the run was asked for holds, but for flags that are given anew; those that come too late are named
// in a notice.
absl::Status GoOnAsBefore(const std::string& run_dir, const CLI::App& command, node::RunOptions& options);

// Flags that say how to serve, and none that says to.
absl::Status CheckServing(const CLI::App& command, const node::RunOptions& options);

// `options` must outlive the parser.
void DeclareCoordination(CLI::App& command, node::RunOptions& options);

}  // namespace lockstep::cli
