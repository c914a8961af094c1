// Ranks that come late to their collectives by their own doing, or for want of data (comm_slow.h).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

struct SlowRanks {
  std::vector<incident::Finding> findings;  // what is for want of data first
  std::string unsure;  // who may be slow, or not: its steps differ, or it comes and goes; empty: nobody
};

// Of a rank of slow `groups` counts what it takes longer for than those. Requires rounds that take some time.
SlowRanks FindSlowRanks(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds,
                        const std::vector<std::set<int>>& groups);

}  // namespace lockstep::detect
