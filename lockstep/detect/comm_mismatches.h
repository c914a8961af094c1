// Ops that do not fit each other: one number of a communicator is another function on some ranks, or another size where
// all must bring the same; or the two ends of a transfer are of another amount. The smaller side is named, of equal
// ones both, unless ranks of one have left collectives out or added some right there (comm_departures.h). Pure. Cost:
// about linear in the ops that have not ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/detect/comm_departures.h"
#include "lockstep/detect/comm_standing.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// A number of a communicator, by what ranks call it.
struct Mismatch {
  uint32_t communicator;
  int64_t number;
  std::map<std::string, std::vector<const trace::CommOp*>> sides;
};

// The first of each communicator: what comes behind it follows from it.
std::vector<Mismatch> FindMismatches(const Standing& standing);
// Where no side has most of them, all are named: `ambiguous_with` has one.
incident::Finding FindingOf(const Standing& standing, const Mismatch& mismatch);
// Then: those of `departures` are the suspects, and all others as good, where one side alone has none.
void NameDepartures(const trace::CommLog& log, const Mismatch& mismatch, const Departures& departures,
                    incident::Finding& finding);

// Both ends of a transfer must tell the same amount. Who is wrong can't be told.
void FindOtherAmounts(const Standing& standing, std::vector<incident::Finding>& findings);

}  // namespace lockstep::detect
