// Ways between two ranks that may not carry what is there on both sides. Pure.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "lockstep/detect/comm_standing.h"
#include "lockstep/detect/comm_waits.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

using Link = std::pair<int, int>;  // from, to
Link LinkOf(const trace::CommOp& op);
std::vector<incident::Suspect> LinkSuspects(const std::set<Link>& links);

// Of a rank in transfers: the links that hold it, and those that hold whom they lead to. Of what is launched together
// the end is told of all at once: each may be the one that does not end. `told`: the ranks that have been looked at.
void TellOfLinks(const Standing& standing, const Waits& waits, int first, std::set<int>& told,
                 incident::Finding& finding);

}  // namespace lockstep::detect
