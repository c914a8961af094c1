// One function per subcommand: declares its flags, calls one function of a part, prints one report. The only place that
// maps errors to exit codes.
#pragma once

#include <CLI/CLI.hpp>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"

namespace lockstep::cli {

// 0: done. 1: the answer is no, or the job failed. 2: bad usage or bad input. 3: what the job ran on was lost.
inline constexpr int kExitNo = 1;
inline constexpr int kExitBadInput = 2;

// Of --run, as node::FindRunDir and node::FindLiveRunDir have it.
inline constexpr char kNewestRun[] = "Run directory; default: the newest where `lockstep run` makes them";
inline constexpr char kNewestLiveRun[] =
    "Run directory; default: the newest where `lockstep run` makes them, unless it has ended and another goes on";
// As node::RunsBase has it.
inline constexpr char kNewRunDir[] =
    "Run directory; default: $XDG_RUNTIME_DIR/lockstep/JOB, and where that is not set or goes at logout "
    "/tmp/lockstep-UID/JOB";

void AddRun(CLI::App& app, int& exit_code);
void AddCoordinator(CLI::App& app, int& exit_code);
void AddStatus(CLI::App& app, int& exit_code);
void AddIncidents(CLI::App& app, int& exit_code);
void AddWhy(CLI::App& app, int& exit_code);
void AddPolicy(CLI::App& app, int& exit_code);
void AddUpdate(CLI::App& app, int& exit_code);
void AddStop(CLI::App& app, int& exit_code);
void AddDrill(CLI::App& app, int& exit_code);
void AddTop(CLI::App& app, int& exit_code);
void AddCheckpoint(CLI::App& app, int& exit_code);
void AddDiagnose(CLI::App& app, int& exit_code);
void AddRecord(CLI::App& app, int& exit_code);
void AddInspect(CLI::App& app, int& exit_code);
void AddDowntime(CLI::App& app, int& exit_code);
void AddStandbys(CLI::App& app, int& exit_code);
void AddReport(CLI::App& app, int& exit_code);
void AddProbe(CLI::App& app, int& exit_code);
void AddPlan(CLI::App& app, int& exit_code);
void AddReplay(CLI::App& app, int& exit_code);
void AddFeed(CLI::App& app, int& exit_code);
void AddExplain(CLI::App& app, int& exit_code);
void AddSimulate(CLI::App& app, int& exit_code);
void AddHidden(CLI::App& app, int& exit_code);  // starter, stacks: for ourselves

// Prints the report, or the error on stderr; returns the exit code.
int PrintReport(const absl::StatusOr<Json>& report, bool as_json);
int PrintError(const absl::Status& status);
// Of a command that runs a job to its end; control::kExitDone and its like. Prints why there was none.
int ExitCodeOf(const absl::StatusOr<int>& job);

}  // namespace lockstep::cli
