// How long ranks may wait in their communication before it says something, by how long they waited before: a job that
// evaluates at each 200th step waits long, and goes on. Pure. Cost: about linear in ops.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

// The longest that an op has been under way which has not ended. Null: nothing is, or of something it is not known.
std::optional<Seconds> LongestWait(const trace::CommLog& log);
// What all but 1 % of what has ended took at most: a running job always has something under way. 0: nothing has.
Seconds UsualWait(const trace::CommLog& log);
// What took longest at two moments, for of one alone (the first step, a pause) nobody knows that it comes again. 0: no
// two did.
Seconds RepeatedWait(const trace::CommLog& log);
// For how long nothing is launched and nothing ends in a job that goes on: kQuiets times the longest that came twice.
// Null: too little is told.
inline constexpr double kQuiets = 3;
std::optional<Seconds> UsualQuiet(const trace::CommLog& log);
// Since anything was launched or ended, when the log was taken. Null: not known.
std::optional<Seconds> QuietFor(const trace::CommLog& log);
// Why that nobody waits does not say that all is well: nothing has moved for longer than that. Empty: it has.
std::string QuietText(const trace::CommLog& log, const CommThresholds& thresholds);

}  // namespace lockstep::detect
