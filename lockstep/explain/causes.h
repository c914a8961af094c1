// Names what holds a job back, the costliest first. Greedy: the cause whose remedy gains most is taken, its remedy
// stays, and what is left is looked at again, so that a large cause does not hide a second one.
#pragma once

#include <algorithm>
#include <vector>

#include "lockstep/explain/cause.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::explain {

// How many times as long as ideally a step takes. Below the first: healthy. From the second on it is no minor matter.
inline constexpr double kStraggles = 1.03, kStragglesBadly = 1.1;

// Whether a job is slow enough to say so, to name causes and to count it in a fleet: by the share of its steps that is
// lost, late begins of steps among them.
inline bool Straggles(double lost, double times = kStraggles) { return 1 >= times * (1 - lost); }

// What gains less of a step, or of the loss, is not named.
inline double WorthAName(double step, double loss) { return std::max(0.01 * step, 0.05 * loss); }

struct Causes {
  std::vector<Cause> found;
  double step_s = 0;         // the measured step, replayed with the delays at its begin
  double loss_s = 0;         // what it takes longer than the ideal one
  double unexplained_s = 0;  // what is left of the loss
  double lost() const { return step_s > 0 ? loss_s / step_s : 0; }                // a share of the step
  double unexplained() const { return loss_s > 0 ? unexplained_s / loss_s : 0; }  // a share
};

// Nothing is named for a job that does not straggle.
Causes FindCauses(const trace::TracedJob& job, const WhatIf& analysis);

}  // namespace lockstep::explain
