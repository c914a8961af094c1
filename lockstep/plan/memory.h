// What a step needs of an accelerator's memory, by kind, on the stage that needs most: docs/models/plan.md has the
// formulas and their sources. Pure.
#pragma once

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct MemoryUse {
  // Bytes. states: weights, gradients, optimizer. workspace: of the largest weight gradient, of gathered weights.
  // context: of the driver, of communication libraries, and what allocators lose.
  double states = 0, activations = 0, logits = 0, workspace = 0, context = 0;
  double total() const { return states + activations + logits + workspace + context; }
  // What a framework's own count says, which knows no context.
  double allocated() const { return total() - context; }
  // With a small context, nothing lost, and 5 % less than predicted, for so far are predictions from what is measured:
  // what takes more than there is does not run.
  double least() const { return .95 * allocated() + 2e9; }
};

// All requires a valid workload.
MemoryUse PredictMemory(const Workload& workload);
// The share of its layers that are computed again in the backward pass.
double RecomputedShare(const Workload& workload);

}  // namespace lockstep::plan
