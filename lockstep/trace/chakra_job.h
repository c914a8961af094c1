// A job as a graph, from Chakra execution traces: one step, a lane for each rank, and the edges that the traces have.
//
// Ranks with the same nodes and edges share a role; the ops of a role are absent in the lanes of others. Communications
// meet by group, or by sender, receiver and tag, in their order. A trace has no times of its own: when ops began is
// what the replay says. Of a communication each rank has its own wait in its duration; the shortest counts as transfer.
#pragma once

#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/chakra.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// kInvalidArgument: a rank twice; ops that wait for each other in a circle, which are named; ranks whose communications
// differ where they should meet.
absl::StatusOr<TracedJob> BuildChakraJob(std::vector<ChakraRank> ranks);

}  // namespace lockstep::trace
