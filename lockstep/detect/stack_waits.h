// Who waits for whom, beside stacks: as the ranks' logs of communication tell it, or as it follows from the calls that
// they are in and the layout of the job.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cluster/layout.h"
#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/detect/stack_clusters.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

// Ranks that are in one call, and those for whom they wait.
struct WaitFor {
  std::vector<int> in;
  std::vector<int> behind;  // none: all have come
  std::string what;         // "all_reduce 12 of communicator 3"
  bool somebody = false;    // they wait, nobody knows for whom
};

struct WaitGraph {
  std::vector<WaitFor> waits;
  std::vector<int> silent;  // that are waited for and told nothing, ascending
  bool hangs = false;       // it has been so for longer than a job that goes on would be (comm_hang.h)
};

// Nothing in it: nobody waits, or the log is of a job that moves.
WaitGraph WaitsOf(const trace::CommLog& log, const CommThresholds& thresholds = {});
// Requires trainers whose ranks the layout has. In a call of a group a rank waits for the members that are not in the
// same call, in a transfer for its neighbour in the pipeline. Without a hint whose group it is, it waits for somebody.
WaitGraph InferWaits(const cluster::Layout& layout, const StackClusters& stacks);

}  // namespace lockstep::detect
