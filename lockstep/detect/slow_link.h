// Ways between ranks on which messages take long, and what explains them (comm_slow.h).
#pragma once

#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// Requires rounds that take some time.
std::vector<incident::Finding> FindSlowLinks(const trace::CommLog& log, const Rounds& rounds,
                                             const CommThresholds& thresholds);

}  // namespace lockstep::detect
