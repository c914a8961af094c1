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

// nullopt: it is not slow. `usual_spread`: by which the lanes of most ranks vary by chance (SpreadOfLanes), where
// longer sequences look like a worker that is always slow; 0 where they do not.
std::optional<SlowLanes> FindSlowLanes(const Passes& passes, int dp, int stage, double usual_spread);

}  // namespace lockstep::explain
