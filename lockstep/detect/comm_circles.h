// What is told of ranks that wait for each other in a circle: software's doing, unless one of them may hang by itself.
// Pure. Cost: of FindCircles and CircleOrders.
#pragma once

#include <vector>

#include "lockstep/detect/comm_departures.h"
#include "lockstep/detect/comm_standing.h"
#include "lockstep/detect/comm_waits.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// `all_wait`: every rank that told something waits.
std::vector<incident::Finding> FindingsOfCircles(const Standing& standing, const Waits& waits,
                                                 const LazyDepartures& departures, bool all_wait);
// Of circles that stay, whatever ranks outside of them do that they wait for, too: never certain, for a rank that goes
// on beside what it waits in may yet launch what others wait in.
std::vector<incident::Finding> FindingsOfOpenCircles(const Standing& standing, const Waits& waits,
                                                     const LazyDepartures& departures);

}  // namespace lockstep::detect
