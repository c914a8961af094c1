// The tables of a report over many runs, each an array of flat objects. Rehearsals (`lockstep drill`) are in none of
// them, and their lost time is not either. Times are those of each run's ledger. Pure. Cost: linear in the incidents.
#pragma once

#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/history/run.h"

namespace lockstep::history {

// {class: explicit|implicit|manual, symptom, count, share}. Explicit: it says so itself (a crash, an error, a loss,
// broken hardware). Implicit: it has to be found (hangs, slowness). Manual: runs that somebody stopped, updates. As
// ByteRobust's Table 1.
Json IncidentTable(const std::vector<RunFacts>& runs);
// {symptom, resolved_by, count, resolution_mean_s, resolution_max_s, lost_mean_s, lost_max_s}: resolution from the
// first news of it to training again (decide + restart, as its Table 6); lost with detection and recomputation.
Json ResolutionTable(const std::vector<RunFacts>& runs);
// {phase, hours, share} of all phases, productive first.
Json PhaseTable(const std::vector<RunFacts>& runs);
// {component, failures, per, hours, mttf_h, mttf_low_h, mttf_high_h}: hours of ranks, nodes or jobs that were not
// paused, over failures (several nodes that are lost at once are as many), with exact 95 % limits (Garwood); without
// failures the mean and the upper limit are null.
Json FailureTable(const std::vector<RunFacts>& runs);

// Summed over runs, without the lost time of rehearsals.
struct Time {
  double productive_s = 0, wall_s = 0;
  double ettr() const { return wall_s > 0 ? productive_s / wall_s : 1; }
};
// `by_ranks`: each run weighs as much as it has ranks at the time, rather than all alike.
Time TimeOf(const std::vector<RunFacts>& runs, bool by_ranks);
// Of the window that ends at `until` (wall time); here rehearsals count, for the ledger of an hour can't tell them.
Time TimeWithin(const std::vector<RunFacts>& runs, Nanos until, Seconds window);

Seconds Lost(const incident::Phases& phases);
Seconds ResolutionTime(const incident::Phases& phases);

}  // namespace lockstep::history
