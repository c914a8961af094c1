// Which stage of a pipeline takes longer than the others, where no replica of it tells what is usual (comm_slow.h); or
// which rank, of others that wait for each other in sends and receives. Stages differ by design, so this is never
// certain.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

struct SlowStages {
  std::vector<incident::Finding> findings;
  std::set<int> ranks;  // that are stages and are compared with others of their pipeline alone,
  std::set<int> known;  // and of which it is known whether they are slow
  std::string unknown;  // why stages that would have to be compared can't be; empty: all are
};

// `rounds`: of collectives, may be none.
SlowStages FindSlowStages(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds);

}  // namespace lockstep::detect
