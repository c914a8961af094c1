// Ranks that send to each other outside of collectives and meet no replica of any of them, which would tell what is
// usual: they can be compared with each other alone.
#pragma once

#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct LonePipeline {
  std::vector<int> ranks;  // ascending, two at the least
  // They are no stages, but replicas that wait for each other in sends and receives, as in ring attention: what
  // collectives tell of them holds, but may not be all.
  bool alike = false;
};

// Not those that are alike, unless each of them sends and receives, and one waits in that for this part of the time at
// the least: else collectives tell all.
std::vector<LonePipeline> LonePipelines(const trace::CommLog& log, double least_waited);

}  // namespace lockstep::detect
