#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/cli/plan_commands.h"
#include "lockstep/plan/gap_report.h"
#include "lockstep/plan/report.h"
#include "lockstep/trace/kineto_steps.h"

namespace lockstep::cli {

absl::StatusOr<plan::MeasuredParts> MeasuredBy(const std::vector<std::string>& files, const plan::Workload& layout) {
  LS_ASSIGN_OR_RETURN(std::vector<trace::KinetoRank> ranks, trace::ReadKinetoFiles(files, std::nullopt));
  LS_RETURN_IF_ERROR(trace::OrderAsOneJob(ranks));
  LS_ASSIGN_OR_RETURN(plan::MeasuredParts measured, plan::MeasureParts(std::move(ranks), layout));
  const double seconds = std::accumulate(measured.parts.seconds.begin(), measured.parts.seconds.end(), 0.0);
  if (const double mfu = plan::ShareOfPeak(layout, {seconds}); mfu > 1)
    return InvalidArgument(
        "{}: steps of {:.3g} s would be {:.0f} % of the peak: they are not of this model, batch and "
        "cluster",
        files.front(), seconds, 100 * mfu);
  return measured;
}

absl::StatusOr<Json> ExplainPlan(const std::vector<std::string>& files, const plan::Candidate& predicted,
                                 const plan::Rates& rates) {
  LS_ASSIGN_OR_RETURN(const plan::MeasuredParts measured, MeasuredBy(files, predicted.workload));
  return plan::GapReport(predicted, rates, measured);
}

}  // namespace lockstep::cli
