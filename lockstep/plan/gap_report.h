// Why a step takes longer than predicted: what a profiler saw beside the prediction, term by term.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/plan/measured_parts.h"
#include "lockstep/plan/search.h"

namespace lockstep::plan {

// {verdict, machine, accelerators, layout, step_time_s {measured, predicted, lo80, hi80}, mfu {measured, predicted},
// terms [{term, measured_s, predicted_s, difference_s, mfu_gain}], kernels [{kernel, term, seconds}], slowest_ranks
// [{rank, computes_s, waits_s}], trace {ranks, of, steps, communications_matched}, notes [text], counters {name:
// count}}. Terms add up to the step on both sides; the one that costs most beyond its prediction is the first.
// mfu_gain: what the measured share of the peak would rise by, if this term alone took what was predicted.
Json GapReport(const Candidate& predicted, const Rates& rates, const MeasuredParts& measured);

}  // namespace lockstep::plan
