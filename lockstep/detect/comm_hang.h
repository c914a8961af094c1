// Which rank keeps the others waiting in their collectives? From what each rank launched and how far it came, at one
// moment: no clocks are compared. docs/models/detect.md, "Hangs seen in collectives", has the reasoning.
//
// Each rank is in one op, the oldest that it launched and that has not ended (a send only where it has nothing else),
// and in what runs together with that. It waits for the members that are not in it yet; who is waited for and waits for
// nobody is named. Ranks that wait in a circle are software's doing, and so are ops that do not fit each other.
//
// Pure: the findings are a function of the set of ops, whatever their order. Cost: about linear in ops and in the sizes
// of the communicators in which somebody waits.
#pragma once

#include <string>
#include <vector>

#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/incident/incident.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct CommDiagnosis {
  std::vector<incident::Finding> findings;  // none: nobody waits
  std::vector<int> no_report;               // ranks of the job of which nothing is known
  std::string
      too_short;  // where nothing was found: why that does not say that nothing hangs or is slow; empty: it does
};

// Hangs alone.
CommDiagnosis FindHangs(const trace::CommLog& log, const CommThresholds& thresholds = {});
// Hangs; where there are none, slowness (comm_slow.h).
CommDiagnosis DiagnoseCommunication(const trace::CommLog& log, const CommThresholds& thresholds = {});

}  // namespace lockstep::detect
