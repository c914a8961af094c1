#include "lockstep/synth/times.h"

namespace lockstep::synth {

absl::Status CheckTimes(const std::vector<std::pair<const char*, double>>& seconds, double jitter) {
  constexpr double kMost = 1e5, kMostJitter = 10;
  for (const auto& [name, value] : seconds)
    if (!(value >= 0 && value <= kMost)) return InvalidArgument("{} must be 0 to {:g}, found {}", name, kMost, value);
  if (!(jitter >= 0 && jitter <= kMostJitter))
    return InvalidArgument("jitter must be 0 to {:g}, found {}", kMostJitter, jitter);
  return absl::OkStatus();
}

}  // namespace lockstep::synth
