// How long a training step takes, in closed form: docs/models/plan.md has the formulas and their sources. Pure. Cost:
// well below a microsecond.
//
//   LS_RETURN_IF_ERROR(workload.Validate());
//   const StepTime step = PredictStep(workload, rates);
//   step.total().value;
#pragma once

#include <array>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/schedule.h"
#include "lockstep/plan/variant.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// Where the time of a step goes, on its critical path. Communication is what computing does not hide.
enum class Part {
  kGemm,
  kExperts,
  kAttention,
  kGlue,  // element-wise work, and the device idle between kernels
  kRecompute,
  kOffload,  // over the link to the host
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
inline constexpr size_t kParts = 16;
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
  std::vector<Passes> stages;  // of all layers of each, with the communication that computing does not hide; input:
                               // with what is computed again
  Passes layer, head;          // of a layer in the mean of all
  double overlap = 0;          // of a layer, saved where a forward and a backward pass run together
  double transfer = 0;         // to the next stage, as far as it holds the sender up
  double data = 0;             // of the step: between replicas, hidden or not
  double host_link = 0;        // of the step: what the optimizer on the host has it wait for
  double transfer_bytes = 0, data_bytes = 0;
};
StageTimes PredictStage(const Workload& workload, const Rates& rates);

// PredictStep in two halves, for a search: what all variants (variant.h) of a layout share, and the rest.
// PredictStep(w, r) is StepOf(TermsOf(w, r), VariantOf(w)).
struct LayerSeconds {
  double gemm = 0, experts = 0, attention = 0, glue = 0, tensor = 0, context = 0, exchange = 0, wait = 0;
  double computed() const { return gemm + experts + attention + glue; }
  double total() const { return computed() + tensor + context + exchange + wait; }
};
// Seconds of the optimizer for what a rank updates: on the accelerator, or on the host, and over the link to it.
struct Update {
  double here = 0, host = 0, gradients = 0, parameters = 0;
};
struct KeptSeconds {  // of what KeptBytes says
  double all = 0, selected = 0, input = 0;
};
struct StepTerms {
  LayerSeconds forward, backward, both;  // of a layer and a microbatch, in the mean of trained and frozen ones
  LayerSeconds pair;                     // of both, run together: each hides what the other exchanges with experts
  Passes trained;                        // of a layer that is
  double trained_backward = 0;           // both backward passes of that
  Passes mixed;          // by how much longer one takes with experts than without; where stages differ in those
  double selective = 0;  // what selective recomputation adds
  KeptSeconds to_host;   // to send what a layer keeps over the host's link, one way
  double from_host = 0, gradients = 0;  // seconds of a layer over the link to the host: its weights; its gradients
  Passes head;
  double layers = 0, most_layers = 0, last_layers = 0;  // of the model; of a stage at most; of the last
  double frozen = 0;                                    // layers of the model
  double mixed_share = 0;                               // of the layers, those that have experts
  std::vector<StageRun> runs;                           // where stages differ; else empty
  bool skips_frozen = false;                            // no backward pass reaches a frozen layer
  double stages = 1, microbatches = 1;
  double transfer = 0, transfer_hidden = 0;
  double transfer_bytes = 0, data_bytes = 0;
  double data = 0, data_hidden = 0;  // seconds between replicas; share of a backward pass that hides them
  double gather = 0, scatter = 0, sharded_hidden = 0;  // of ZeRO 3, each time
  double replicate = 0;                                // once, between groups that share
  Update whole, shared;                                // of all that a rank holds; of its share of that, by ZeRO
  double step = 0, straggle = 0;                       // straggle: share of all else
};
StepTerms TermsOf(const Workload& workload, const Rates& rates);
// The stages of the workload alone, where a search has changed those.
void TakeStages(const Workload& workload, StepTerms& terms);
StepTime StepOf(const StepTerms& terms, const Variant& variant);
// Seconds of the first `ways` of the ways to hide communication, each the total of StepOf; what they share is computed
// once.
std::array<double, kWaysToHide> SecondsOfWays(const StepTerms& terms, Variant variant, int ways);

}  // namespace lockstep::plan
