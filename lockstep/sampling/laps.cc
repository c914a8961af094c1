#include "lockstep/sampling/laps.h"

#include <algorithm>
#include <cmath>

namespace lockstep::sampling {
namespace {

// Windows that differ by less are as good as equal: no pace is known better.
bool IsNear(uint64_t window, uint64_t places) {
  constexpr double kNear = 0.05;
  return std::abs(static_cast<double>(window) - static_cast<double>(places)) <= kNear * static_cast<double>(places);
}

}  // namespace

uint64_t Laps::ClockPlace(int64_t now) const {
  const Runner& leader = runners_.front();
  if (leader.steps <= 0) return leader.place;
  const double progress = static_cast<double>(now - leader.begin) / leader.steps;
  return leader.place + static_cast<uint64_t>(std::llround(static_cast<double>(leader.places) * progress));
}

// The whole lap as universe_.
uint64_t Laps::WindowAt(double places_a_step, const LapRequest& request) const {
  if (!paced_ || places_a_step <= 0 || request.steps <= 0) return universe_;
  const double places = std::min(places_a_step * request.steps, static_cast<double>(universe_));
  const auto window = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(places)));
  if (IsNear(window, universe_)) return universe_;
  return IsNear(window, request.items) ? request.items : window;  // then each item of the job is a place of the lap
}

double Laps::LongestEpoch(const LapRequest& request) const {
  double longest = request.steps;
  for (const auto& [job, steps] : announced_) longest = std::max(longest, steps);
  return longest;
}

// Another epoch of a job that had windows of this lap, if it still has room for this one.
bool Laps::GoesOnInLap(const LapRequest& request, const Had& had, Runner& runner) const {
  const Runner& leader = runners_.front();
  if (leader.steps <= 0) return false;
  runner.places = WindowAt(static_cast<double>(leader.places) / leader.steps, request);
  if (runner.places == universe_) return false;
  // Its epoch may have taken less time than was expected.
  const uint64_t place = ClockPlace(request.now);
  runner.place = std::max(place, had.end);
  return runner.place - place <= std::max(reach_, runner.places / 8) &&
         runner.place + runner.places <= had.first + universe_;
}

Lap Laps::Begin(const LapRequest& request) {
  std::erase_if(runners_, [&](const Runner& runner) {
    return runner.job == request.job ||
           (runner.steps > 0 && static_cast<double>(request.now - runner.begin) >= runner.steps);
  });
  Runner runner{.job = request.job, .places = universe_, .begin = request.now, .steps = request.steps};
  const auto had = had_.find(request.job);
  const bool was_here = had != had_.end() && had->second.number >= number_;
  uint64_t first = 0;
  if (!runners_.empty() && was_here && had->second.number == number_ && GoesOnInLap(request, had->second, runner)) {
    first = had->second.first;
  } else if (runners_.empty() || was_here) {
    number_ = 1 + std::max(number_, was_here ? had->second.number : 0);
    runners_.clear();
    if (request.steps > 0) runner.places = WindowAt(static_cast<double>(universe_) / LongestEpoch(request), request);
  } else {
    const Runner& leader = runners_.front();
    const uint64_t place = ClockPlace(request.now);
    first = runner.place = place - leader.place <= reach_ ? leader.place : place;
    if (leader.steps > 0) runner.places = WindowAt(static_cast<double>(leader.places) / leader.steps, request);
  }
  had_[request.job] = {.number = number_, .first = first, .end = runner.place + runner.places};
  runners_.push_back(runner);
  return {.number = number_,
          .offset = universe_ == 0 ? 0 : runner.place % universe_,
          .window = runner.places == universe_ ? 0 : runner.places};
}

void Laps::Pace(uint64_t job, double steps) {
  for (Runner& runner : runners_) {
    if (runner.job == job && runner.steps <= 0) runner.steps = steps;
  }
}

void Laps::GoOn(uint64_t job, uint64_t number) { had_[job] = {.number = number, .first = 0, .end = universe_}; }
void Laps::Forget(uint64_t job) { had_.erase(job); }

void Laps::Leave(uint64_t job) {
  std::erase_if(runners_, [&](const Runner& runner) { return runner.job == job; });
  announced_.erase(job);
}

}  // namespace lockstep::sampling
