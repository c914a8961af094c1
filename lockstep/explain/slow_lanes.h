// The lanes in which a worker is slow: all of them, a run of steps, or here and there. docs/models/explain.md has the
// rule.
#pragma once

#include <array>
#include <optional>

#include "lockstep/explain/pass_times.h"

namespace lockstep::explain {

struct SlowLanes {
  Lanes lanes;
  bool always = false;                   // all of the worker's
  bool in_a_row = true;                  // or a run of them; else those that stand out here and there
  std::array<double, kPasses> ratios{};  // of each pass to what is usual, in these lanes
};

// Of all workers, as the passes are when it is made.
class SlowWorkers {
 public:
  explicit SlowWorkers(const Passes& passes);
  // nullopt: it is not slow.
  const std::optional<SlowLanes>& Of(int dp, int stage) const {
    return slow_[static_cast<size_t>(dp)][static_cast<size_t>(stage)];
  }
  // By which the lanes of most ranks vary by chance, where longer sequences look like a worker that is always slow:
  // with one stage. 0: of several, the others tell.
  double usual_spread() const { return usual_spread_; }

 private:
  const double usual_spread_;
  std::vector<std::vector<std::optional<SlowLanes>>> slow_;  // [dp][stage]
};

}  // namespace lockstep::explain
