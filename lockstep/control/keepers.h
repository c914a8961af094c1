// Which node keeps the checkpoints of which in its memory (lockstep/keep): each node one other, each for one other.
// Where the layout of the job is known, one that shares no tensor-, pipeline- or data-parallel group with it, for a
// whole group may be lost or evicted at once; else, and where there is but one group, its neighbour. Pure. Source:
// ByteRobust (SOSP'25), section 6.3, which has such a rule for ranks.
//
//   KeepersOf(nodes, layout)[2]     // the keeper of node 2; -1: there is no other node
#pragma once

#include <optional>
#include <vector>

#include "lockstep/cluster/layout.h"
#include "lockstep/control/events.h"

namespace lockstep::control {

// A layout for another number of ranks than the nodes have says nothing.
std::vector<int> KeepersOf(const std::vector<NodeSpec>& nodes, const std::optional<cluster::Layout>& layout);
// A job that nobody has told its nodes runs on one.
std::vector<int> KeepersOf(const JobSpec& job);

}  // namespace lockstep::control
