// `lockstep why`: an incident told as a story, from the state that its journal leads to: what was seen when, what the
// policy made of it and what it refused, what was done, what that cost and what came of it.
// Pure. The one document for text and JSON (base/report.h).
#pragma once

#include "lockstep/control/machine.h"

namespace lockstep::control {

// {incident, headline, opened, seen: [lines], decisions: [{after_s, symptom, rung, reason, refused: [lines]}],
//  done: [lines], cost: {...}, outcome}. Moments count from `opened`. NotFound: the run has no such incident.
absl::StatusOr<Json> Story(const State& state, int64_t incident, Nanos now);

}  // namespace lockstep::control
