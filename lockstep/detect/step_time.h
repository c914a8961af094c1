// How long a step of this job takes, from the job itself: sparse observations (step, end) of every rank in, two
// percentiles out.
// Invariant: depends on the set of samples with at <= now. Bounded: the newest 64 observed steps a
// rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/detect/hang.h"

namespace lockstep::detect {

struct StepTime {
  Seconds median;  // what a step takes
  Seconds slow;    // the 95th percentile: evaluations and saves that come more often belong to the rhythm of the job
};

class StepTimes {
 public:
  void Add(const RankSample& sample);
  // Forgets the observations, keeps what they said.
  void Reset();
  // Of the slowest rank's last 50 steps. Where fewer than 3 were observed, of all steps of its loop if these are 3 or
  // more: a job of millisecond steps may hang between two looks. Else what earlier epochs said; none if there is
  // neither.
  std::optional<StepTime> At(Nanos now) const;

 private:
  struct Seen {
    Nanos end, at;       // when the step ended; when that was first known
    int64_t loop_steps;  // of the loop up to this step
    Nanos loop_time;
  };
  using Steps = std::map<int64_t, Seen>;
  static std::vector<Seconds> Durations(const Steps& steps, Nanos now);

  std::optional<StepTime> Find(Nanos now) const;

  std::map<RankId, Steps> ranks_;
  Nanos newest_;  // when a step was last seen first
  // What is said from then on: while a job stands, no step comes, and it is asked at every tick.
  mutable bool known_ = false;
  mutable std::optional<StepTime> last_;
  std::optional<StepTime> learnt_;
};

}  // namespace lockstep::detect
