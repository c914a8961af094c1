#include "lockstep/plan/profiled_runs.h"

namespace lockstep::plan {
namespace {

constexpr double kLeastShare = .01;
// Bubbles follow from the others; who waits for a slow rank in one trace says little of machines.
constexpr StepPart kTold[] = {StepPart::kMatrix, StepPart::kAttention, StepPart::kElementWise,    StepPart::kLaunches,
                              StepPart::kTensor, StepPart::kContext,   StepPart::kExpertExchange, StepPart::kPipeline,
                              StepPart::kData,   StepPart::kOptimizer, StepPart::kBetweenSteps};

}  // namespace

std::vector<MeasuredRun> ProfiledRuns(const MeasuredParts& measured, const Workload& work, const Rates& rates) {
  const StepParts predicted = PredictParts(work, rates);
  std::vector<MeasuredRun> runs;
  for (const StepPart part : kTold) {
    const bool counts = measured.parts[part] >= kLeastShare * measured.parts.total() &&
                        predicted[part] >= kLeastShare * predicted.total();
    if (counts)
      runs.emplace_back(0, StepPartName(part), "profile", work, MeasuredRun::Values{measured.parts[part], part});
  }
  return runs;
}

}  // namespace lockstep::plan
