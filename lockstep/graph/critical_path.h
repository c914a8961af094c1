// The critical path of a lane set: the chain of ops, each of which began when the one before it ended, that leads to
// its last final. Shortening what is not on it gains nothing; what is on it is to blame for the time.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/graph/replay.h"

namespace lockstep::graph {

// [begin, end] is the op's own duration. Of a group the op whose end was waited for, in the lane that waited; `waker`
// is the member that began last, on which the path goes on backwards.
struct PathOp {
  uint32_t op, waker;
  uint32_t lane, waker_lane;
  double delay;  // of the waker, before `begin`
  double begin, end;
};

// In the order of time: the first begins at its delay, each at the end of the one before it plus its delay, and the
// last ends with the set. Ops that a lane lacks are left out. Of equals the first counts: that of the lower op, then of
// the lower lane. Requires ends of that scenario.
std::vector<PathOp> CriticalPath(const OpGraph& graph, const Durations& durations, const Scenario& scenario,
                                 const BlockEnds& ends, size_t set);

}  // namespace lockstep::graph
