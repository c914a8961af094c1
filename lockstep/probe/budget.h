// How long a test may go on: a moment, and somebody who may end it earlier. Each test does its least once, whatever is
// left, and then asks before it does more. Thread-safe to read. Cost: one read of the clock.
//
//   do Copy(); while (!budget.Over());
#pragma once

#include <algorithm>
#include <stop_token>

#include "lockstep/base/clock.h"

namespace lockstep::probe {

class Budget {
 public:
  Budget(const Clock& clock, Seconds time, std::stop_token stop)
      : clock_(&clock), end_(clock.Now() + ToNanos(time)), stop_(std::move(stop)) {}

  Nanos Now() const { return clock_->Now(); }
  bool Stopped() const { return stop_.stop_requested(); }
  Seconds Left() const { return {std::max(0.0, ToSeconds(end_ - Now()).value)}; }
  bool Over() const { return Stopped() || Now() >= end_; }
  // What begins now and has so much time.
  Budget Of(Seconds time) const { return {*clock_, time, stop_}; }

 private:
  const Clock* clock_;
  Nanos end_;
  std::stop_token stop_;
};

}  // namespace lockstep::probe
