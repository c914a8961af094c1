// How long a model takes to answer: a pass over the prompts, then a token of each sequence at a time, and what memory
// its weights and its keys and values need. docs/models/plan.md has the formulas; nothing here was fitted to measured
// serving. Pure.
//
//   const InferenceTime time = PredictInference(layout, rates, {.batch = 16, .prompt = 2048, .output = 256});
#pragma once

#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Requests {
  int batch = 1;  // sequences at a time, of one replica
  int prompt = 0, output = 0;
};

struct InferenceTime {
  double first_token = 0;  // s, with the whole prompts
  double token = 0;        // s, of each further one, in the mean over the output
  // Of one accelerator, bytes.
  double weights = 0, cache = 0, workspace = 0;
  double memory() const { return weights + cache + workspace; }
};
// tp and pp of the workload count; all other accelerators are replicas. Requires tp to divide the heads.
InferenceTime PredictInference(const Workload& workload, const Rates& rates, const Requests& requests);

struct InferenceChoice {
  Workload workload;
  InferenceTime time;
  double tokens_per_s = 0;  // of all replicas, from the prompts' arrival to the last token
};
// Every tp that divides the heads and every pp, if they fit; the most tokens per second first. Empty: none fits.
std::vector<InferenceChoice> SearchInference(const Workload& base, const Rates& rates, const Requests& requests);
// kResourceExhausted: none fits. {best [{layout, first_token_s, token_s, tokens_per_s, memory_gib {weights, cache,
// workspace, total, capacity}}]}
absl::StatusOr<Json> InferenceReport(const Workload& base, const Rates& rates, const Requests& requests, size_t keep);

}  // namespace lockstep::plan
