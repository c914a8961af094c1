// How long a training step takes, in closed form: docs/models/plan.md has the formulas and their sources. Pure. Cost:
// well below a microsecond.
//
//   LS_RETURN_IF_ERROR(workload.Validate());
//   const StepTime step = PredictStep(workload, rates);
//   step.total().value;
#pragma once

#include <array>

#include "lockstep/base/units.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/schedule.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Where the time of a step goes, on its critical path. Communication is what computing does not hide.
enum class Part {
  kGemm,
  kExperts,
  kAttention,
  kGlue,  // element-wise work, and waiting for kernels to be launched
  kRecompute,
  kHead,
  kTensor,
  kContext,
  kExpertExchange,
  kPipeline,  // transfers between stages
  kBubble,
  kData,
  kOptimizer,
  kStep,
  kStragglers
};
inline constexpr size_t kParts = 15;
const char* PartName(Part part);

struct StepTime {
  std::array<double, kParts> seconds{};
  double& operator[](Part part) { return seconds[static_cast<size_t>(part)]; }
  double operator[](Part part) const { return seconds[static_cast<size_t>(part)]; }
  Seconds total() const;
};

// Requires a valid workload.
StepTime PredictStep(const Workload& workload, const Rates& rates);

// What a schedule puts in order, in seconds of one microbatch.
struct StageTimes {
  Passes layer, head;  // with the communication that computing does not hide; input: with what is computed again
  double overlap = 0;  // of a layer, saved where a forward and a backward pass run together
  double transfer = 0;  // to the next stage, as far as it holds the sender up
  double data = 0;      // of the step: between replicas, hidden or not
  double transfer_bytes = 0, data_bytes = 0;
};
StageTimes PredictStage(const Workload& workload, const Rates& rates);

}  // namespace lockstep::plan
