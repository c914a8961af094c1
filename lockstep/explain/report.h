// The one document of an analysis: `lockstep explain` prints it as text or JSON.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/what_if.h"
#include "lockstep/trace/kineto_job.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::explain {

// {job, verdict, notes [text] (what the trace lacks or has wrong; not there if nothing), slowdown, launch_slowdown,
// wasted {share, gpu_hours}, steps, step_s {measured, without_delays, ideal}, by_optype {name: S}, by_dp_rank {dp: S},
// by_stage {stage: S},
//  by_worker [{dp, stage, rank, slowdown}], m_w, m_s, causes [{cause, suspects [{dp, stage, rank, host, steps}], share,
//  gain_s, evidence}], unexplained, counters {name: count}}; ranks, workers and causes stand in the order of what they
//  cost. critical_path {by_optype {name: s}, by_worker [{dp, stage, rank, share}]}: where the time of a step was spent
//  on the chain of ops that led to its end; seconds per step, "late_starts" before its first op.
// verdict and causes go by wasted.share, in which late begins of steps count (Straggles). m_w and m_s are null where S,
// which they are shares of, is below 1.03: shares of noise say nothing. wasted is of all GPUs in the traced steps.
// Where the replay, with the delays at the begin of a step, misses the measured steps by more than 5 %, the verdict
// says so, and calls nothing healthy, and `late_launches` names the op types whose delays account for most of it {name:
// T_nodelay with their delays / T_nodelay}. It says, too, of how many ranks that nobody is held against them, and
// whether ranks are absent.
Json Report(const trace::TracedJob& job, const WhatIf& analysis, const Causes& causes);

// For a terminal: of long lists the first eight, which cost most, and in more_in_json {key: how many more there are}.
Json Brief(const Json& report);

// Of a job from profiler traces, adds "ranks" {given, of, absent [...], lacking_steps [...]} (the last not there if
// none), "clocks" [{rank, offset_us, drift_ppm, error_us}]; and, where communication with absent ranks may account for
// 3 % of a step or more, or a rank has no other beside it, "unsettled" {at_most_s, ask_ranks [...]}. The verdict tells
// of absent ranks, and of communications that could not be matched, if they take 5 % of the time of all. Where no
// collective has all its members here, a rank that is not may as well have come late: then the causes are
// "ring_or_late_rank" and "fabric_or_late_rank".
void AddRanks(const trace::KinetoJob& traced, Json& report);

// "dp 3, stage 1, steps 2 to 5".
std::string SuspectText(const Json& suspect);

// {name: value}, largest first.
Json Ordered(const std::vector<std::string>& names, const std::vector<double>& values);

inline constexpr double kTrusted = 0.05;       // how far the replay may be off
inline constexpr char kUnclear[] = "unclear";  // how a verdict begins that calls a job neither healthy nor slow

}  // namespace lockstep::explain
