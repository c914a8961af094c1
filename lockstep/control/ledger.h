// The ETTR ledger: every moment of a run belongs to exactly one phase. Lost seconds are never estimated twice:
// incidents, status, metrics and reports all read them here. Invariant: the sums over phases equal the wall time
// between the first and the last moment entered, to the nanosecond. Retroactive: work in flight when a fault struck
// turns from productive to recompute (it must be done again).
//
//   ledger.Enter(Phase::kProductive, begin, 0);
//   ledger.Enter(Phase::kDetect, fault, incident_id);  // may reach back: the tail is rewritten
//   ledger.Cumulative(now);
#pragma once

#include <array>
#include <cstddef>
#include <unordered_map>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/base/units.h"
#include "lockstep/incident/incident.h"

namespace lockstep::control {

enum class Phase { kStartup, kProductive, kDetect, kDecide, kRestart, kRecompute, kPaused, kShutdown };
inline constexpr int kPhases = 8;
const char* PhaseName(Phase phase);  // "recompute"

class Ledger {
 public:
  // From `at` on, the run is in `phase` on account of `incident` (0 = none). `at` may lie before the last entry: what
  // came after is rewritten; but not before the first entry, where it is moved to.
  void Enter(Phase phase, Nanos at, int64_t incident);
  // The ledger stops counting at `at`.
  void Close(Nanos at);

  using Sums = std::array<Nanos, kPhases>;
  Sums Total(Nanos now) const;
  Sums Within(Nanos from, Nanos to) const;
  incident::Phases OfIncident(int64_t incident, Nanos now) const;
  // Productive share of wall time; 1 for an empty ledger.
  double Cumulative(Nanos now) const;
  double Sliding(Nanos now, Seconds window) const;
  Phase Current() const;

 private:
  struct Interval {
    Phase phase;
    Nanos begin;
    int64_t incident;
  };
  // The part of interval i that lies in [from, to]; none where it lies outside.
  Nanos LengthOf(size_t i, Nanos from, Nanos to) const;

  std::vector<Interval> intervals_;                               // begins ascend; the last one is open until Close
  std::unordered_map<int64_t, std::vector<size_t>> of_incident_;  // which intervals, ascending
  Nanos closed_;                                                  // 0 = open
};

}  // namespace lockstep::control
