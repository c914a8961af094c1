// Ways between ranks on which messages take long, and what explains them (comm_slow.h).
#pragma once

#include <string>
#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

struct SlowLinks {
  std::vector<incident::Finding> findings;
  std::string too_few;  // which way looks slow by too few messages to say so; empty: none
};

// Requires rounds that take some time. Of collectives, or sends, that come up rarely the log is looked through for
// longer than the newest rounds reach.
SlowLinks FindSlowLinks(const trace::CommLog& log, const Rounds& rounds, const CommThresholds& thresholds);

}  // namespace lockstep::detect
