// The terms by which a predicted and a measured step can be laid side by side. A prediction follows one rank of the
// slowest stage, and knows which pass a product belongs to; a profiler sees kernels on all ranks, and neither. So what
// is computed again counts to its kind here, and the output layer is spread over the stages, of which all others wait.
//
//   const StepParts parts = PredictParts(workload, rates);   // sum(parts) is PredictStep(...).total()
#pragma once

#include <array>
#include <cstddef>
#include <numeric>

#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

enum class StepPart {
  kMatrix,  // products: dense, of experts, of the output layer
  kAttention,
  kElementWise,
  kLaunches,  // nothing runs, in the middle of a step
  kTensor,    // of this and the next five: what computing does not hide
  kContext,
  kExpertExchange,
  kPipeline,
  kData,
  kOther,   // between ranks of no one kind
  kBubble,  // waiting for other stages
  kStragglers,
  kOptimizer,
  kBetweenSteps,  // nothing runs, before the first kernel of a step: data are loaded, the host does something else
  kCopies,        // between host and device
  kUnknown        // kernels of no known kind
};
inline constexpr size_t kStepParts = 16;
const char* StepPartName(StepPart part);

// Seconds of a step.
struct StepParts {
  std::array<double, kStepParts> seconds{};
  double& operator[](StepPart part) { return seconds[static_cast<size_t>(part)]; }
  double operator[](StepPart part) const { return seconds[static_cast<size_t>(part)]; }
  double total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

// Requires a valid workload. kOther, kCopies and kUnknown are zero.
StepParts PredictParts(const Workload& workload, const Rates& rates);

}  // namespace lockstep::plan
