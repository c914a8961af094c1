// A prediction, and a search, as documents.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/cost/downtime.h"
#include "lockstep/plan/search.h"

namespace lockstep::plan {

// Share of the machine's 16-bit peak: six operations per active parameter and token, and attention in full, as most
// sources count; a frozen layer has no gradients of its weights, and where nothing below is trained no backward pass.
double Mfu(const Workload& workload, Seconds step);
// The same of the peak in the precision of the layers.
double ShareOfPeak(const Workload& workload, Seconds step);

// {machine, accelerators, layout, fits, step_time_s, lo80, hi80, tokens_per_s, mfu, exposed_communication_s,
// usd_per_step, usd_per_million_tokens, kwh_per_step, memory_gib {states, activations, logits, workspace, context,
// total, capacity, host, host_capacity}, breakdown {part: seconds}, sensitivities {key of a file of machines or rates:
// elasticity}}. mfu: of the model's own operations, without those that are done again. A sensitivity: per cent of the
// step per per cent of the figure; of rates only where `of_rates`. What is not known is null.
Json PredictionReport(const Candidate& candidate, const Rates& rates, bool of_rates);
// {candidates, fitting, stopped, best [prediction], pareto [{machine, accelerators, layout, step_time_s, memory_gib,
// usd_per_step}]}. `clusters`: what was searched.
Json SearchReport(const SearchResult& result, std::span<const Cluster> clusters);

const Rates& RatesOf(const Candidate& candidate, std::span<const Cluster> clusters);  // requires its machine there

// What is left of the tokens per second where the job fails and saves checkpoints as `failures` has it, of a job of
// other size so many times as often: {useful, tokens_per_s, failures_per_day, scaled_by (null: of which size they are
// is not known), checkpoint {interval_s, best_interval_s, best_interval_steps, useful_at_best}}.
absl::StatusOr<Json> GoodputReport(const Candidate& candidate, cost::DowntimeSpec failures);

// Term by term: {a: prediction, b: prediction, difference [{term, a, b, b_minus_a}]}: all parts of the step, the step
// itself, kinds of memory.
Json ComparisonReport(const Candidate& a, const Candidate& b, const Rates& rates);

}  // namespace lockstep::plan
