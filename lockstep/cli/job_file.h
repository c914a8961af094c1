// `lockstep run --job-file`: lays the [run] table of a job file under the flags. A flag that was given wins.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "lockstep/base/status.h"
#include "lockstep/node/options.h"

namespace lockstep::cli {

// `run` is the parsed subcommand: it knows which flags were given. Errors carry file:line:column.
absl::Status ApplyJobFile(const std::string& path, const CLI::App& run, node::RunOptions& options);

}  // namespace lockstep::cli
