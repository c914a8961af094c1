// A test in a process of its own: what hangs in the kernel (a dead disk, a driver) or crashes does so there, is said,
// and does not stop the rest. Call it while no thread of this process holds a lock that the test needs.
//
//   RunApart("disk", budget, Seconds{5}, [&] { return MeasureDisk(budget, options); });
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// What `test` returned; or one measurement that is not ok, if it did not within the budget and `grace`, or died.
std::vector<Measurement> RunApart(const std::string& name, const Budget& budget, Seconds grace,
                                  const std::function<std::vector<Measurement>()>& test);

}  // namespace lockstep::probe
