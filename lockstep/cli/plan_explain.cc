#include <nlohmann/json.hpp>

#include "lockstep/cli/plan_commands.h"
#include "lockstep/plan/gap_report.h"

namespace lockstep::cli {

absl::StatusOr<plan::MeasuredParts> MeasuredBy(const std::vector<std::string>& files, const plan::Workload& layout) {
  LS_ASSIGN_OR_RETURN(std::vector<trace::KinetoRank> ranks, trace::ReadKinetoFiles(files, std::nullopt));
  return plan::MeasureParts(std::move(ranks), layout);
}

absl::StatusOr<Json> ExplainPlan(const std::vector<std::string>& files, const plan::Candidate& predicted,
                                 const plan::Rates& rates) {
  LS_ASSIGN_OR_RETURN(const plan::MeasuredParts measured, MeasuredBy(files, predicted.workload));
  return plan::GapReport(predicted, rates, measured);
}

}  // namespace lockstep::cli
