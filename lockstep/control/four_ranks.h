// Test support: a job of four ranks that trains.
#pragma once

#include <utility>

#include "lockstep/control/scenario.h"

namespace lockstep::control {

inline JobSpec FourRanks() {
  JobSpec spec;
  spec.ranks = 4;
  return spec;
}

// Epoch 1 began at 2 s and finished step 10 at 12 s.
inline Scenario Training(JobSpec spec = FourRanks()) {
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.See(10, 12);
  return job;
}

inline JobSpec OnlyObserved() {
  JobSpec spec = FourRanks();
  spec.observe_only = true;
  return spec;
}

inline double Lost(const State& state, Phase phase, double now) {
  return ToSeconds(state.ledger.Total(At(now))[static_cast<size_t>(phase)]).value;
}

}  // namespace lockstep::control
