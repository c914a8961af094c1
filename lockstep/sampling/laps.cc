#include "lockstep/sampling/laps.h"

#include <algorithm>
#include <cmath>

namespace lockstep::sampling {

uint64_t Laps::OffsetAt(int64_t now) const {
  if (runners_.empty() || universe_ == 0) return 0;
  const Runner& leader = runners_.front();
  const double progress = static_cast<double>(now - leader.begin) / leader.steps;
  return (leader.offset + static_cast<uint64_t>(std::llround(static_cast<double>(universe_) * progress))) % universe_;
}

Lap Laps::Begin(const LapRequest& request) {
  std::erase_if(runners_, [&](const Runner& runner) {
    return runner.job == request.job || static_cast<double>(request.now - runner.begin) >= runner.steps;
  });
  const auto last = last_.find(request.job);
  if (runners_.empty() || (last != last_.end() && last->second >= number_)) {
    ++number_;
    runners_.clear();
  }
  const Lap lap{.number = number_, .offset = OffsetAt(request.now)};
  last_[request.job] = number_;
  runners_.push_back({.job = request.job, .offset = lap.offset, .begin = request.now, .steps = request.steps});
  return lap;
}

void Laps::BeginBehind(uint64_t lap) {
  if (lap < number_) return;
  number_ = lap;
  runners_.clear();
}

void Laps::Leave(int job) {
  std::erase_if(runners_, [&](const Runner& runner) { return runner.job == job; });
}

}  // namespace lockstep::sampling
