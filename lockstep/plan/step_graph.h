// One step of one pipeline as a graph: every microbatch on every stage in the order of its schedule, transfers between
// stages, gradients between replicas, the optimizer; and when each begins and ends. The other way to the time of a
// step: step.h sums in closed form, this carries everything out (graph/replay.h). Both take their seconds from
// PredictStage. What the graph knows better is how transfers, the output layer and stages that differ work together.
//
//   LS_ASSIGN_OR_RETURN(const StepGraph step, BuildStepGraph(workload, rates));
//   const StepTimes times = Simulate(step);
//   times.total.value;
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/graph/op_graph.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

// kPair: a forward and a backward pass at once. kSend: to the next stage, or backwards to the one before. kBuckets:
// until the first gradients can be sent. kFinish: the optimizer, and what of a step is none of these.
enum class StepOpKind : uint8_t { kForward, kBackward, kInput, kWeight, kPair, kSend, kBuckets, kReduce, kFinish };
const char* StepOpName(StepOpKind kind);

struct StepOp {
  StepOpKind kind = StepOpKind::kForward;
  int stage = 0;  // the rank of the pipeline
  int chunk = -1, microbatch = -1;
  int to = -1;  // of kSend
  double seconds = 0, bytes = 0;
};
inline bool RunsBeside(const StepOp& op) { return op.kind == StepOpKind::kReduce || op.kind == StepOpKind::kBuckets; }

struct StepGraph {
  graph::OpGraph graph;
  std::vector<StepOp> ops;      // as the graph numbers them
  std::vector<uint32_t> first;  // [stage]: its first op
  Schedule schedule = Schedule::k1F1B;
};
// kInvalidArgument: a schedule that can't be; one of more than a million ops.
absl::StatusOr<StepGraph> BuildStepGraph(const Workload& workload, const Rates& rates);

struct StepTimes {
  std::vector<double> begin, end;  // s, of each op
  Seconds total;                   // of ZB-2p the longest from a stage's begin to its own end, as in schedule.h
};
StepTimes Simulate(const StepGraph& step);

}  // namespace lockstep::plan
