// What `lockstep feed status` says: the jobs, how much preparation they share, what lies in memory, where time goes.
#pragma once

#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/units.h"
#include "lockstep/feed/data_set.h"
#include "lockstep/feed/dispatcher.h"

namespace lockstep::feed {

Json StatusReport(const DataSet& data, const std::string& socket, Nanos up, const Dispatcher& dispatcher,
                  const sampling::CacheSplit& split);

}  // namespace lockstep::feed
