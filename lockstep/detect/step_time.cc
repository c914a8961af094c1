#include "lockstep/detect/step_time.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace lockstep::detect {
namespace {

constexpr size_t kObservations = 64;
constexpr int64_t kSteps = 50;
constexpr size_t kFewest = 3;

Seconds Percentile(std::vector<Seconds>& values, double share) {
  const auto nth = values.begin() + std::lround(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), nth, values.end());
  return *nth;
}

}  // namespace

void StepTimes::Add(const RankSample& sample) {
  if (sample.step < 0 || sample.step_end.value == 0) return;
  Steps& steps = ranks_[sample.rank];
  const auto [it, fresh] =
      steps.try_emplace(sample.step, Seen{sample.step_end, sample.at, sample.steps, sample.stepping});
  Seen& seen = it->second;
  if (fresh || sample.step_end < seen.end || sample.at < seen.at) known_ = false;
  seen.end = std::min(seen.end, sample.step_end);
  seen.at = std::min(seen.at, sample.at);
  newest_ = std::max(newest_, seen.at);
  if (fresh && steps.size() > kObservations) steps.erase(steps.begin());
}

// A gap of n steps between two observations stands for n steps of the mean length. Newest first.
std::vector<Seconds> StepTimes::Durations(const Steps& steps, Nanos now) {
  std::vector<Seconds> durations;
  const std::pair<const int64_t, Seen>* later = nullptr;
  const Seen* newest = nullptr;
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (it->second.at > now) continue;
    if (later != nullptr) {
      const int64_t count = later->first - it->first;
      const Seconds mean{ToSeconds(later->second.end - it->second.end).value / static_cast<double>(count)};
      const int64_t room = kSteps - static_cast<int64_t>(durations.size());
      durations.insert(durations.end(), static_cast<size_t>(std::min(count, room)), mean);
    }
    later = &*it;
    if (newest == nullptr) newest = &it->second;
  }
  if (newest != nullptr && durations.size() < kFewest && newest->loop_steps >= static_cast<int64_t>(kFewest))
    durations.assign(kFewest, Seconds{ToSeconds(newest->loop_time).value / static_cast<double>(newest->loop_steps)});
  return durations;
}

std::optional<StepTime> StepTimes::At(Nanos now) const {
  if (now < newest_) return Find(now);
  if (!std::exchange(known_, true)) last_ = Find(now);
  return last_;
}

std::optional<StepTime> StepTimes::Find(Nanos now) const {
  std::optional<StepTime> slowest;
  for (const auto& [rank, steps] : ranks_) {
    std::vector<Seconds> durations = Durations(steps, now);
    if (durations.size() < kFewest) continue;
    const Seconds median = Percentile(durations, 0.5), slow = Percentile(durations, 0.95);
    if (!slowest) slowest = StepTime{};
    slowest->median = std::max(slowest->median, median);
    slowest->slow = std::max(slowest->slow, slow);
  }
  return slowest ? slowest : learnt_;
}

void StepTimes::Reset() {
  learnt_ = At(Nanos{INT64_MAX});
  ranks_.clear();
  newest_ = {};
  known_ = false;
}

}  // namespace lockstep::detect
