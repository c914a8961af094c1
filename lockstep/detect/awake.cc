#include "lockstep/detect/awake.h"

#include <algorithm>

namespace lockstep::detect {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Samples come every 0.1 s; a loaded machine delays them. A longer hole is time in which nobody looked.
constexpr Nanos kForgivenGap{3 * kSecond};

}  // namespace

bool Halted(const RankSample& sample) { return sample.state == ProcState::kStopped || sample.frozen; }

bool Unfinished(const RankSample& sample) {
  return !sample.finished && sample.state != ProcState::kGone && sample.state != ProcState::kZombie;
}

void AwakeClock::Add(const RankSample& sample) {
  if (!Unfinished(sample)) return;
  Slot& slot = slots_[sample.at.value / kSecond];
  slot.seen = std::min(slot.seen, sample.at);
  if (!Halted(sample)) slot.awake = std::min(slot.awake, sample.at);
  if (sample.traced) slot.traced = std::min(slot.traced, sample.at);
  if (slots_.size() <= capacity_) return;
  known_from_ = std::max(known_from_, Nanos{(slots_.begin()->first + 1) * kSecond});
  slots_.erase(slots_.begin());
}

Seconds AwakeClock::Between(Nanos from, Nanos to) const {
  from = std::max(from, known_from_);
  Nanos watched = to - from, seen = from;
  const auto skip_gap = [&](Nanos until) {
    if (until - seen > kForgivenGap) watched = watched - (until - seen);
    seen = std::max(seen, until);
  };
  for (auto it = slots_.lower_bound(from.value / kSecond); it != slots_.end(); ++it) {
    const auto& [second, slot] = *it;
    if (slot.seen > to) break;
    skip_gap(slot.seen);
    const Nanos begin = std::max(from, Nanos{second * kSecond}), end = std::min(to, Nanos{(second + 1) * kSecond});
    if (!Counts(slot, to)) watched = watched - (end - begin);
    seen = std::max(seen, end);
  }
  skip_gap(to);
  return ToSeconds(std::max(watched, Nanos{0}));
}

}  // namespace lockstep::detect
