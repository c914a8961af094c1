// How long a step of the job takes: the median over the newest looks at it, of which one may cover several steps. The
// first looks of an epoch are left aside: its first steps warm up. Unknown before there are enough of them.
//
//   Pace pace;
//   pace.Add(fleet.progress());  ...
//   if (pace.step_time().value > 0) ...
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <vector>

#include "lockstep/base/median.h"
#include "lockstep/control/events.h"

namespace lockstep::control {

class Pace {
 public:
  static constexpr int kWarmUp = 2;
  static constexpr size_t kLeast = 10, kMost = 50;

  void Begin() { *this = {}; }
  void Add(const Progress& progress) {
    const bool is_newer =
        progress.step_end.value > 0 && progress.step > last_.step && progress.step_end > last_.step_end;
    if (!is_newer) return;
    const bool counts = last_.step_end.value > 0 && ++looks_ > kWarmUp;
    if (counts) {
      const double steps = static_cast<double>(progress.step - last_.step);
      times_.push_back(ToSeconds(progress.step_end - last_.step_end).value / steps);
    }
    if (times_.size() > kMost) times_.pop_front();
    last_ = progress;
  }
  // 0: not known yet.
  Seconds step_time() const {
    if (times_.size() < kLeast) return {};
    return Seconds{UpperMedian(std::vector(times_.begin(), times_.end()))};
  }

 private:
  Progress last_{-1, {}};
  int looks_ = 0;
  std::deque<double> times_;
};

}  // namespace lockstep::control
