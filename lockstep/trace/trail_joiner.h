// The trails of a job's ranks (trail_choice.h), in which each numbers what it does by itself, as one log.
#pragma once

#include <vector>

#include "lockstep/trace/comm_log.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {

// Of each rank one trail of each library. Clocks of different hosts are fitted to each other by the ends of
// collectives.
CommLog JoinChosen(const std::vector<TrailSnapshot>& trails);

}  // namespace lockstep::trace
