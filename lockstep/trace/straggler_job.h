// A job as a graph, from rows of the straggler schema: lanes are (step, data-parallel rank), the template has the ops
// of all stages. Dependencies follow the what-if straggler analysis (OSDI'25); docs/models/explain.md has them as
// rules.
//
// What was measured is parted as there: the transfer of a communication counts from its last peer's start, and what
// passed between the end of an op's dependencies and its start is its launch delay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/graph/op_graph.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

struct JobOp {
  OpType type;
  int stage;
  int sequence;
  int chunk, microbatch, global_chunk;  // -1: not applicable
  int kind = -1;                        // index into StragglerJob::kinds
};

struct JobLane {
  int64_t step;
  int dp;
};

struct StragglerJob {
  graph::OpGraph graph;
  std::vector<JobOp> ops;
  std::vector<std::string> kinds;     // of ops, as results name them
  std::vector<uint32_t> ideal_class;  // of each op: those of a class would ideally take the same time
  std::vector<JobLane> lanes;
  std::vector<int64_t> steps;  // of the graph's lane sets, ascending
  int dp = 1, pp = 1;
  std::vector<std::vector<int32_t>> ranks;  // [dp][stage]

  // [op * lanes + lane], s.
  std::vector<float> starts, durations;
  std::vector<float> transfers;  // of communication; of compute, its duration
  std::vector<float> delays;
  std::vector<float> step_times;  // of each lane set: last end - first start

  std::vector<Counter> counters;
};

// The op that begins a step on its rank: before it there is the loading of data.
inline bool BeginsStep(const JobOp& op) {
  return (op.type == OpType::kForwardCompute || op.type == OpType::kSegment) && op.stage == 0 && op.sequence == 0;
}

// From starts and durations: transfers and delays; counts what had to be mended.
void MeasureParts(StragglerJob& job);

// Takes the rows apart to save memory. kInvalidArgument names the op and lane: a duplicate, a count that fits no
// schedule.
absl::StatusOr<StragglerJob> BuildStragglerJob(StragglerRows rows, const StragglerMeta& meta);

}  // namespace lockstep::trace
