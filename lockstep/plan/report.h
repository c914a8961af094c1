// A prediction, and a search, as documents.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/plan/search.h"

namespace lockstep::plan {

// {layout, step_time_s, lo80, hi80, tokens_per_s, mfu, memory_gib {states, activations, logits, workspace, context,
// total, capacity}, breakdown {part: seconds}, sensitivities {machine.bandwidth: elasticity, ...}}. mfu: of the model's
// own operations, without those that are done again. A sensitivity: per cent of the step per per cent of the figure.
Json PredictionReport(const Candidate& candidate, const Rates& rates);
// {candidates, fitting, best [prediction], pareto [{layout, step_time_s, memory_gib}]}.
Json SearchReport(const SearchResult& result, const Rates& rates);

Candidate Predict(const Workload& workload, const Rates& rates);

}  // namespace lockstep::plan
