// What `lockstep feed status` says: the jobs, how much preparation they share, what lies in memory, where time goes.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/units.h"
#include "lockstep/feed/dispatcher.h"

namespace lockstep::feed {

struct ServiceFacts {
  std::string name, path, socket;
  uint64_t items = 0;
  Nanos up;
};

Json StatusReport(const ServiceFacts& service, const Dispatcher& dispatcher);

}  // namespace lockstep::feed
