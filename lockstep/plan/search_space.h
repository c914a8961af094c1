// The layouts that a search tries. Of each all that divides: tp the heads, within a domain of fast links; pp the
// layers; cp the sequence in twice as many pieces; ep the experts, over ranks that share none; dp is what is left and
// has to divide the batch.
#pragma once

#include <functional>
#include <span>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

using Visit = std::function<void(const Workload&)>;

// tp, pp, cp, ep and dp.
void EachSplit(const Workload& base, const Visit& visit);
// Microbatch, schedule and its chunks, ZeRO 1 and (without a pipeline) 3, recomputation of a split.
void EachSchedule(const Workload& split, std::span<const Schedule> schedules, const Visit& visit);

}  // namespace lockstep::plan
