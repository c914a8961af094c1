// The newest samples of one kind from one rank, in the order of their times whatever the order of arrival.
// Invariant: what is kept depends only on the set of samples that arrived: the newest `capacity` of those that are not
// older than the newest by more than `span`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>

#include "lockstep/base/units.h"

namespace lockstep::detect {

template <typename Sample>
class Series {
 public:
  using Iterator = typename std::deque<Sample>::const_iterator;

  Series(size_t capacity, Nanos span) : capacity_(capacity), span_(span) {}

  // `mark(samples, i)` notes in sample i what follows from it and those before it; it is asked of each for which that
  // may have changed.
  template <typename Mark>
  void Add(const Sample& sample, Mark mark) {
    const auto place = std::lower_bound(samples_.begin(), samples_.end(), sample);
    if (place != samples_.end() && *place == sample) return;
    auto changed = static_cast<size_t>(place - samples_.begin());
    samples_.insert(place, sample);
    for (; changed < samples_.size(); ++changed) mark(samples_, changed);
    while (samples_.size() > capacity_ || samples_.back().at - samples_.front().at > span_) samples_.pop_front();
  }
  void Clear() { samples_.clear(); }

  Iterator begin() const { return samples_.begin(); }
  // One past the last sample with at <= now.
  Iterator After(Nanos now) const {
    if (samples_.empty() || samples_.back().at <= now) return samples_.end();
    return std::upper_bound(samples_.begin(), samples_.end(), now,
                            [](Nanos time, const Sample& sample) { return time < sample.at; });
  }
  // The newest with at <= now; null if there is none.
  const Sample* Last(Nanos now) const {
    const Iterator end = After(now);
    return end == begin() ? nullptr : &*std::prev(end);
  }

 private:
  size_t capacity_;
  Nanos span_;
  std::deque<Sample> samples_;
};

}  // namespace lockstep::detect
