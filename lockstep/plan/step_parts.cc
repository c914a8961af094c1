#include "lockstep/plan/step_parts.h"

#include <cmath>

#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr double kRounding = 1e-12;  // of a difference

constexpr double kAtOnce = 1e12;  // of a rate: what goes by it takes no time

// What a prediction lumps together, by what it is made of.
struct Lump {
  double launches = 0, communication = 0, products = 0, attention = 0, element_wise = 0;
};
// A kind of work is what goes when its rates are without bound. One after the other, so that the kinds add up to
// seconds(rates). Communication goes before attention, behind which some of it hides.
template <typename SecondsBy>
Lump Split(Rates rates, const SecondsBy& seconds) {
  double left = seconds(rates);
  const auto rest = [&] {
    const double before = left;
    return before - (left = seconds(rates));
  };
  Lump lump;
  rates.kernel = rates.kernel_gap = rates.blocked = rates.microbatch = 0;
  lump.launches = rest();
  rates.scale_up = rates.network = kAtOnce, rates.latency = 0;
  lump.communication = rest();
  rates.gemm = rates.gemm_fp8 = rates.gemm_fp4 = kAtOnce;
  lump.products = rest();
  rates.flash = rates.unfused = kAtOnce, rates.softmax_passes = 0;
  lump.attention = rest();
  lump.element_wise = left;
  return lump;
}

}  // namespace

const char* StepPartName(StepPart part) {
  constexpr const char* kNames[kStepParts] = {
      "matrix products", "attention",       "element-wise", "launches",      "tensor",
      "context",         "expert exchange", "pipeline",     "data",          "other",
      "bubble",          "stragglers",      "optimizer",    "between steps", "copies to and from host",
      "unknown kernels"};
  return kNames[static_cast<size_t>(part)];
}

StepParts PredictParts(const Workload& work, const Rates& rates) {
  static_assert(kParts == 16, "every part of a prediction needs a term below");
  const StepTime step = PredictStep(work, rates);
  const auto of_step = [&](Part part) {
    return Split(rates, [&](const Rates& other) { return PredictStep(work, other)[part]; });
  };
  const Lump glue = of_step(Part::kGlue), again = of_step(Part::kRecompute);
  const Lump head = Split(rates, [&](const Rates& other) { return PredictStage(work, other).head.total(); });
  const double heads = double(work.Microbatches()) / work.pp;  // in the mean over stages
  const double all_head = head.launches + head.products + head.element_wise;
  StepParts parts;
  parts[StepPart::kMatrix] = step[Part::kGemm] + step[Part::kExperts] + again.products + heads * head.products;
  parts[StepPart::kAttention] = step[Part::kAttention] + again.attention;
  parts[StepPart::kElementWise] = step[Part::kGlue] - glue.launches + again.element_wise + heads * head.element_wise;
  parts[StepPart::kLaunches] = glue.launches + again.launches + heads * head.launches;
  parts[StepPart::kTensor] = step[Part::kTensor];
  parts[StepPart::kContext] = step[Part::kContext];
  parts[StepPart::kExpertExchange] = step[Part::kExpertExchange];
  // What is exchanged again, in the proportion of the first time.
  constexpr StepPart kOfLayers[] = {StepPart::kTensor, StepPart::kContext, StepPart::kExpertExchange};
  const double once = step[Part::kTensor] + step[Part::kContext] + step[Part::kExpertExchange];
  for (const StepPart part : kOfLayers)
    if (once > 0) parts[part] += again.communication * parts[part] / once;
  parts[StepPart::kPipeline] = step[Part::kPipeline];
  parts[StepPart::kData] = step[Part::kData];
  // All but the slowest stage wait for what that one has more; without others that is nothing, but for rounding.
  const double waits = step[Part::kBubble] + step[Part::kHead] - heads * all_head;
  parts[StepPart::kBubble] = std::abs(waits) > kRounding * step[Part::kHead] ? waits : 0;
  parts[StepPart::kStragglers] = step[Part::kStragglers];
  parts[StepPart::kOptimizer] = step[Part::kOptimizer];
  parts[StepPart::kBetweenSteps] = step[Part::kStep];
  parts[StepPart::kCopies] = step[Part::kOffload];
  return parts;
}

}  // namespace lockstep::plan
