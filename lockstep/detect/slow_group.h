// Groups of ranks that are slow alike, as those of a slow host are: nobody among them waits for another.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// What the members of a collective take alike before it, say tensor-parallel ranks of one host, is compared where each
// of them meets members of other such groups. Slow is who takes longer there nearly every time, and by more than chance
// makes (late_ranks.h).
struct SlowGroup {
  std::set<int> ranks;
  incident::Finding finding;
};
struct SlowGroups {
  std::vector<SlowGroup> groups;
  std::string too_few;  // where there are none: why that does not say that none is slow; empty: it does
};
SlowGroups FindSlowGroups(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds);

}  // namespace lockstep::detect
