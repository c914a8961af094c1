// The lines of a run for people, from the documents of control/report.h. Each may be wider than the terminal: Fit() it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/report.h"

namespace lockstep::term {

std::string HeadLine(const Json& status);
// `width`: of the strip for a step time of `slowest`.
std::string RankLine(const Json& rank, double slowest, int width);
std::string IncidentLine(const Json& incident);

// A member that may be missing or null: NaN then.
double Number(const Json& object, const char* key);
// A member of foreign origin, without control characters; empty if it is missing.
std::string Word(const Json& object, const char* key);
// In seconds, of the rank's newest step; NaN before the first of its epoch, of which documents say 0.
double StepTime(const Json& rank);
// The longest of them; NaN if none is known.
double Slowest(const Json& ranks);
// Green while all is well, red when it is not.
const char* ColourOf(const std::string& state);

}  // namespace lockstep::term
