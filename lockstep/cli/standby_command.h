// How a machine is started that is to stand by for the job of this `lockstep run`: with the same options and script,
// but for those that say which node this one is and who leads.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace lockstep::cli {

// Program and arguments, but for `run --node-name NAME`, which come between the two (schedule/slurm.h). `run` was
// parsed.
std::vector<std::string> StandbyCommand(const CLI::App& run, const std::string& coordinator);

}  // namespace lockstep::cli
