// A predicted step as files that others read: a timeline for Perfetto (trace/perfetto.h), or Chakra execution traces
// (trace/chakra_writer.h), one per stage of the pipeline, which lockstep explain, Chakra and ASTRA-sim read.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/step_graph.h"

namespace lockstep::plan {

// Threads of a stage: what it computes, what it sends, gradients beside both.
absl::Status WriteTimeline(const StepGraph& step, const StepTimes& times, const std::string& path);
// "step.et" becomes step.0.et, step.1.et, ...; returns their paths. A receive is an op of the receiver.
absl::StatusOr<std::vector<std::string>> WriteChakraTraces(const StepGraph& step, const std::string& path);

}  // namespace lockstep::plan
