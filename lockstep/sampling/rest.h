// What a job has not yet had of an epoch, as the state of one whose order isn't a function of a few numbers: a bit for
// each item of its set.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::sampling {

struct Rest {
  uint64_t identity = 0;  // of seed and sets (Stream)
  uint64_t epoch = 0;
  uint64_t lap = 0;        // that was begun last (Sampler::LastLap)
  std::vector<bool> left;  // by index into the job's set
};

std::string SaveRest(const Rest& rest);
bool IsRest(std::string_view state);
// Of a set of `size` items. kInvalidArgument: damaged, or of another size. kFailedPrecondition: of another identity.
absl::StatusOr<Rest> LoadRest(std::string_view state, uint64_t identity, uint64_t size);

}  // namespace lockstep::sampling
