// Which op of a pipelined step waits for which: the rules of the what-if straggler analysis (OSDI'25;
// docs/models/explain.md).
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/graph/op_graph.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// One lane that has every op, for the order of ops on a stream: the schema does not say it otherwise.
struct ReferenceLane {
  std::span<const JobOp> ops;
  std::vector<float> starts, ends;  // s, of each op
};

// Adds dependencies, groups and finals for ops that the builder already has, under the numbers of `lane.ops`.
absl::Status AddPipelineRules(const ReferenceLane& lane, const StragglerMeta& meta, graph::OpGraphBuilder& builder);

// "forward-recv 3 of stage 1".
std::string NameOf(const JobOp& op);

}  // namespace lockstep::trace
