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
    if (known_ && total > last_) Grow(at, total - last_);
    last_ = total;
    known_ = true;
    return Within(at, window);
  }
  // The same for what is told one by one.
  uint64_t Count(Nanos at, uint64_t more, Seconds window) {
    if (more > 0) Grow(at, more);
    return Within(at, window);
  }

 private:
  struct Growth {
    Nanos at;
    uint64_t by;
  };
  void Grow(Nanos at, uint64_t by) {
    if (!growths_.empty()) at = std::max(at, growths_.back().at);
    growths_.push_back({at, by});
    sum_ += by;
  }
  uint64_t Within(Nanos at, Seconds window) {
    while (!growths_.empty() && growths_.front().at + ToNanos(window) <= at) {
      sum_ -= growths_.front().by;
      growths_.pop_front();
    }
    return sum_;
  }

  std::deque<Growth> growths_;  // within the window, the oldest first
  uint64_t last_ = 0, sum_ = 0;
  bool known_ = false;
};

}  // namespace lockstep::inspect
