// The subcommands of `lockstep plan`, and where its presets lie.
#pragma once

#include <string>

#include "lockstep/cli/commands.h"

namespace lockstep::cli {

void AddPlanValidate(CLI::App& plan, int& exit_code);
void AddPlanCalibrate(CLI::App& plan, int& exit_code);
void AddPlanMadmax(CLI::App& plan, int& exit_code);
void AddPlanMoe(CLI::App& plan, int& exit_code);
void AddPlanDlrm(CLI::App& plan, int& exit_code);
void AddPlanInference(CLI::App& plan, int& exit_code);

// As PrintReport; of what fits nowhere the exit code says no.
int PrintPlan(const absl::StatusOr<Json>& report, bool as_json);

absl::StatusOr<std::string> PlanPresets();  // the folder of machines and rates

}  // namespace lockstep::cli
