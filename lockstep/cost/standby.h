// How many machines to keep warm for those that fail, and what that saves: by how many fail on a day (as ByteRobust,
// SOSP'25, sizes its pool) and by how many fail while one is being replaced; and the weighted average scheduling time
// (WAS) of a restart with standbys, without, and with as many as ever needed. docs/models/downtime.md has the formulas.
//
//   LS_ASSIGN_OR_RETURN(StandbySpec spec, ReadStandbySpec("presets/standbys/byterobust-1024.toml"));
//   LS_ASSIGN_OR_RETURN(const Json report, StandbyReport(spec));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::cost {

// How long it takes from the decision to restart without some machines until the job has all its machines again.
struct SchedulingTimes {
  Seconds standby;                 // one that is warm comes in
  Seconds reschedule;              // one that is not is found and started
  Seconds reschedule_each;         // each further one at the same time
  std::optional<Seconds> requeue;  // the whole job is scheduled anew
};

struct StandbySpec {
  int64_t machines = 0;
  double daily_rate = 0;  // chance of a machine to fail on a day
  double quantile = 0.99;
  std::optional<Seconds> replace;  // until another machine stands by in the place of one that was taken
  // Failures of many machines at once (a switch) are not independent ones, and no pool is sized for them: they are so
  // large, of a smaller job all of it, and have what the quantile leaves.
  int64_t catastrophe = 32;
  std::optional<SchedulingTimes> times;

  absl::Status Validate() const;
};

// TOML; times in s, but for replace_h. standby_s, reschedule_s: both or neither.
absl::StatusOr<StandbySpec> ReadStandbySpec(const std::string& path);

// The fewest that are enough for the failures of `quantile` of all days: P(X <= n) >= quantile, X ~ Binomial.
int64_t StandbysPerDay(int64_t machines, double daily_rate, double quantile);
// The fewest with which `quantile` of all failures find one: those that are being replaced at a moment are
// Poisson(failures per s × replace), whatever the law of that time (Palm), and a failure finds one that is free
// with P(N < n).
int64_t StandbysWhileReplaced(double failures_per_s, Seconds replace, double quantile);
// Of a list of how many failed together (a day, a time): the least n that `quantile` of them do not exceed.
int64_t ObservedQuantile(std::vector<int64_t> counts, double quantile);

enum class Strategy { kStandby, kReschedule, kRequeue, kOracle };
// Formula: WAS = quantile × Σ P(k) t(k) / Σ P(k), k = 1 ... n, + (1 − quantile) × t(catastrophe); n of StandbysPerDay,
// at least 1, and P of Binomial. A pool that is too small is used up and only the rest rescheduled; the oracle's never
// is. Requires a valid spec with times, and for kRequeue that time.
Seconds WeightedSchedulingTime(const StandbySpec& spec, Strategy strategy, int64_t standbys);
// [{strategy, was_s, times_standby}]; without the time of a requeue, without its row.
Json SchedulingJson(const StandbySpec& spec, int64_t standbys);

// {machines, daily_rate, failures_per_day, quantile, standbys {per_day, while_replaced, replace_h}, chances
// [{failures, share_of_days}], catastrophe {machines, not_covered}, scheduling: as above}; null: not asked
absl::StatusOr<Json> StandbyReport(const StandbySpec& spec);

}  // namespace lockstep::cost
