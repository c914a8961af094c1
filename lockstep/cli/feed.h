// Subcommands of `lockstep feed`, each in a file of its own.
#pragma once

#include "lockstep/cli/commands.h"

namespace lockstep::cli {

void AddFeedPlan(CLI::App& feed, int& exit_code);
void AddFeedSimulate(CLI::App& feed, int& exit_code);
void AddFeedServe(CLI::App& feed, int& exit_code);
void AddFeedStatus(CLI::App& feed, int& exit_code);
void AddFeedTop(CLI::App& feed, int& exit_code);
void AddFeedBench(CLI::App& feed, int& exit_code);
void AddFeedIndex(CLI::App& feed, int& exit_code);
void AddFeedShow(CLI::App& feed, int& exit_code);

}  // namespace lockstep::cli
