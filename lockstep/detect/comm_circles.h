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

}  // namespace lockstep::detect
