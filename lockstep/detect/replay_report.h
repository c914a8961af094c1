// What a replay found, as the document of `lockstep replay` and as a finding for an incident.
#pragma once

#include "lockstep/base/report.h"
#include "lockstep/detect/group_testing.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// {healthy, note, bad [machine], certain, confidence, suspects [{machine, chance}], links [[machine]], evict [machine],
// evict_confidence, grid {machines, pipeline, m, n, unique}, rounds [{round, groups, runs_each, failed [{machines,
// runs, failures, evidence}]}], machine_minutes}. healthy: no group is faulty. note: only if there is one. links:
// groups with a fault that shows in none of their machines apart.
Json ReplayReport(const GroupTestResult& result);

// Who is to blame for an incident of that syndrome, for nobody else may be evicted: nodes, named by `names`. Certain
// only if the verdict is. A link leaves suspects empty and names its group in ambiguous_with. nullopt: nothing failed.
std::optional<incident::Finding> ReplayFinding(const GroupTestResult& result, incident::Syndrome syndrome,
                                               const std::vector<std::string>& names);

}  // namespace lockstep::detect
