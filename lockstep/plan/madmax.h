// The performance model of MAD-Max (ISCA 2024), computed as its authors' program computes it, quirks and all, so that
// its figures can be held against ours: docs/models/madmax.md has the formulas. Not what `lockstep plan` predicts with.
// Pure; deterministic to the last bits but for the order of sums.
//
//   LS_ASSIGN_OR_RETURN(const MadmaxTimes times, PredictMadmax(model, system, task, MadmaxVariant::kDlrm));
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::plan {

// The program for a kind of model. How the backward pass gathers the weights of a transformer: when the block before is
// done, or a block ahead; of one of images the latter.
enum class MadmaxVariant { kDlrm, kGatherOnTime, kGatherAhead, kImages };
// "dlrm_tasks", "llm_tasks_preoptimized", "opt" or "vit_tasks".
std::optional<MadmaxVariant> MadmaxVariantOf(std::string_view name);

// Of one iteration; all but `iteration` are sums over what the device does, however much of it is hidden.
struct MadmaxTimes {
  Seconds iteration, gemm, embedding, all_to_all, all_reduce, all_gather, reduce_scatter;
  // Communication that computing does not hide.
  Seconds exposed() const { return iteration - gemm - embedding; }
};

// model, system, task: as the JSON files of MAD-Max have them. kInvalidArgument: a key is missing, a figure is not
// positive, the variant is another kind of model's, or the strategies are none that MAD-Max allows. kUnimplemented: of
// which no output is known to compare with: mixtures of experts, DLRM with transformers, a frozen top or transformer.
absl::StatusOr<MadmaxTimes> PredictMadmax(const Json& model, const Json& system, const Json& task,
                                          MadmaxVariant variant);

}  // namespace lockstep::plan
