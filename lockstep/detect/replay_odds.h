// How often a fault shows in a replay, and how often each group therefore has to run.
//
//   p  chance that a bad machine makes a run of its group fail ("reproduces"), in each run on its own
//   q  chance that a run without one fails all the same ("false alarm")
//   miss(r, t)  = P[Bin(r, p) <  t]   a bad group of which fewer than t of r runs fail; q = 0: t = 1, miss = (1 - p)^r
//   alarm(r, t) = P[Bin(r, q) >= t]   a healthy group of which t or more fail; q = 0: 0
//
// A verdict on up to two faults rests on at most 2 groups of each fault in each of 3 rounds, one of which holds it, so
// it misses nothing with a chance of at least 1 - 6 miss; the other way round, no group of a round is a false alarm
// with a chance of at least 1 - n alarm. The rule is the least r with 6 miss <= error and n alarm <= error.
#pragma once

#include "lockstep/base/status.h"

namespace lockstep::detect {

struct ReplayOdds {
  double reproduces = 1;   // p
  double false_alarm = 0;  // q
  double error = 0.01;     // of the whole search for up to two faults, at most

  // kInvalidArgument: outside of (0, 1], [0, p) and (0, 0.5].
  absl::Status Validate() const;
};

// Each group runs `runs` times, or until `failures` of them failed: then it is faulty.
struct ReplayRule {
  int runs = 1;
  int failures = 1;
};
inline constexpr int kMostReplays = 1000;

double MissChance(const ReplayRule& rule, double reproduces);
double AlarmChance(const ReplayRule& rule, double false_alarm);

// For rounds of so many groups. kInvalidArgument: it would take more than kMostReplays runs.
absl::StatusOr<ReplayRule> RuleFor(const ReplayOdds& odds, int groups);

}  // namespace lockstep::detect
