#include "lockstep/detect/awake.h"

#include <algorithm>

namespace lockstep::detect {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// Samples come every 0.1 s; a loaded machine delays them. A longer hole is time in which nobody looked.
constexpr Nanos kForgivenGap{3 * kSecond};

// What is not watched from one sample to the next.
Nanos Hole(Nanos from, Nanos to) { return to - from > kForgivenGap ? to - from : Nanos{}; }

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

AwakeUntil AwakeClock::Until(Nanos to) const {
  AwakeUntil until(known_from_, to);
  for (const auto& [second, slot] : slots_) {
    if (slot.seen > to) break;
    until.seconds_.push_back(
        {second, slot.seen, std::min(to, Nanos{(second + 1) * kSecond}), Counts(slot, to), Nanos{}});
  }
  Nanos lost, seen = to;  // from the second on that comes next, which is first seen then
  for (auto it = until.seconds_.rbegin(); it != until.seconds_.rend(); ++it) {
    it->lost_behind = lost + Hole(it->end, seen);
    lost = it->lost_behind + (it->counts ? Nanos{} : it->end - Nanos{it->number * kSecond});
    seen = it->seen;
  }
  return until;
}

Seconds AwakeUntil::Since(Nanos from) const {
  from = std::max(from, known_from_);
  const auto first = std::ranges::lower_bound(seconds_, from.value / kSecond, {}, &Second::number);
  if (first == seconds_.end()) return ToSeconds(std::max(to_ - from - Hole(from, to_), Nanos{0}));
  const Nanos begin = std::max(from, Nanos{first->number * kSecond});
  const Nanos lost = Hole(from, first->seen) + (first->counts ? Nanos{} : first->end - begin) + first->lost_behind;
  return ToSeconds(std::max(to_ - from - lost, Nanos{0}));
}

}  // namespace lockstep::detect
