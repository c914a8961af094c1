// Names what holds a job back, the costliest first. Greedy: the cause whose remedy gains most is taken, its remedy
// stays, and what is left is looked at again, so that a large cause does not hide a second one.
#pragma once

#include <vector>

#include "lockstep/explain/cause.h"
#include "lockstep/explain/what_if.h"

namespace lockstep::explain {

struct Causes {
  std::vector<Cause> found;
  double step_s = 0;         // the measured step, replayed with the delays at its begin
  double loss_s = 0;         // what it takes longer than the ideal one
  double unexplained_s = 0;  // what is left of the loss
  double unexplained() const { return loss_s > 0 ? unexplained_s / loss_s : 0; }  // a share
};

// Nothing is named for a job that does not straggle (S below `straggles`, and no late starts of that size).
Causes FindCauses(const trace::TracedJob& job, const WhatIf& analysis, double straggles);

}  // namespace lockstep::explain
