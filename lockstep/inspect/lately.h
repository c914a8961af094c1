// How much a counter grew within the last so many seconds, from successive readings of it. A counter that is smaller
// than before began anew: what it had is the new beginning. Growth between two readings counts at the later one.
//
//   Lately lately;
//   lately.Add(now, total, window)               // 0 at first: what was before us is not new
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "lockstep/base/units.h"

namespace lockstep::inspect {

class Lately {
 public:
  uint64_t Add(Nanos at, uint64_t total, Seconds window) {
    const bool first = points_.empty();
    if (!first) at = std::max(at, points_.back().at);
    if (!first && total > last_) grown_ += total - last_;
    last_ = total;
    points_.push_back({at, grown_});
    // The newest point outside of the window stays: growth counts from there.
    while (points_.size() > 1 && points_[1].at + ToNanos(window) <= at) points_.pop_front();
    return grown_ - points_.front().grown;
  }
  // The same for what is told one by one.
  uint64_t Count(Nanos at, uint64_t more, Seconds window) {
    if (points_.empty()) Add(at, 0, window);
    return Add(at, last_ + more, window);
  }

 private:
  struct Point {
    Nanos at;
    uint64_t grown;
  };
  std::deque<Point> points_;
  uint64_t last_ = 0, grown_ = 0;
};

}  // namespace lockstep::inspect
