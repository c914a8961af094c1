// The times of made-up jobs.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::synth {

// kInvalidArgument: seconds that are not from 0 to 100,000, by their names; a standard deviation of logarithms that is
// not from 0 to 10.
absl::Status CheckTimes(const std::vector<std::pair<const char*, double>>& seconds, double jitter);

}  // namespace lockstep::synth
