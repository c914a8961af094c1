// The one document of an analysis: `lockstep explain` prints it as text or JSON.
#pragma once

#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/what_if.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::explain {

// {slowdown, launch_slowdown, steps, step_s {measured, without_delays, ideal}, by_optype {name: S}, by_dp_rank {dp: S},
// by_stage {stage: S},
//  by_worker [{dp, stage, rank, slowdown}], m_w, m_s, causes [{cause, suspects [{dp, stage, rank, steps}], share,
//  gain_s, evidence}], unexplained, counters {name: count}}; ranks, workers and causes stand in the order of what they
//  cost.
// m_w and m_s are null for a job that does not straggle: shares of noise say nothing.
Json Report(const WhatIf& analysis, const Causes& causes, const trace::StragglerMeta& meta,
            const std::vector<trace::Counter>& counters);

inline constexpr double kStraggles = 1.03;  // S below this: healthy

}  // namespace lockstep::explain
