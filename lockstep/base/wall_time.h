// Wall time as people and other programs read it.
#pragma once

#include <string>

#include "lockstep/base/units.h"

namespace lockstep {

// ISO 8601 in UTC with milliseconds: "2026-01-01T10:00:10.041Z".
std::string IsoTime(Nanos wall);
// "2026-01-01T10:00:10Z"
std::string IsoSecond(Nanos wall);
// "2026-01-01"
std::string IsoDay(Nanos wall);

}  // namespace lockstep
