// Many jobs in one report: how much of what they were given they lost, to which causes, and on which nodes.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/explained.h"

namespace lockstep::explain {

// What the fleet's report needs of a job, and no more: {job, gpus, day, steps, slowdown, lost, verdict, gpu_hours,
// wasted_gpu_hours, missed_gpu_hours, causes [{cause, gpu_hours, hosts}], unexplained_gpu_hours, hosts, counters}.
// gpu_hours are those of the traced steps.
Json FleetLine(const std::string& id, const Explained& explained);
// Of a job whose files could not be used: {job, error}.
Json DamagedLine(const std::string& id, const absl::Status& error);

// Of lines in any order: {jobs, damaged, straggling, unclear, slowdown {median, p90, p99, max}, by_slowdown, gpu_hours
// {traced, wasted, wasted_share}, by_cause, by_size, by_day, nodes, worst_jobs, damaged_jobs, counters}. Slowdowns are
// S, in which steps that begin late have no part; `straggling`, as the verdict, goes by what is lost, so a job may
// straggle at S = 1. A node that is named in more than one job is a culprit that recurs; beside it stands in how many
// jobs it took part. The same bytes however the lines came together.
Json FleetReport(std::vector<Json> lines);

}  // namespace lockstep::explain
