// A fleet's report as one page that needs nothing else.
#pragma once

#include <string>

#include "lockstep/base/report.h"

namespace lockstep::explain {

std::string FleetPage(const Json& report);

}  // namespace lockstep::explain
