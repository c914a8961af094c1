// The subcommands of `lockstep plan`, and where its presets lie.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cli/commands.h"
#include "lockstep/plan/measured_parts.h"
#include "lockstep/plan/search.h"

namespace lockstep::cli {

void AddPlanValidate(CLI::App& plan, int& exit_code);
void AddPlanCalibrate(CLI::App& plan, int& exit_code);
void AddPlanMadmax(CLI::App& plan, int& exit_code);
void AddPlanMoe(CLI::App& plan, int& exit_code);
void AddPlanDlrm(CLI::App& plan, int& exit_code);
void AddPlanInference(CLI::App& plan, int& exit_code);

// What profiler files (JSON, or SQLite of Nsight Systems) of a job in this layout say beside its prediction.
absl::StatusOr<Json> ExplainPlan(const std::vector<std::string>& files, const plan::Candidate& predicted,
                                 const plan::Rates& rates);
absl::StatusOr<plan::MeasuredParts> MeasuredBy(const std::vector<std::string>& files, const plan::Workload& layout);

// As PrintReport; of what fits nowhere the exit code says no.
int PrintPlan(const absl::StatusOr<Json>& report, bool as_json);

absl::StatusOr<std::string> PlanPresets();  // the folder of machines and rates

}  // namespace lockstep::cli
