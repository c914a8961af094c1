// How long a stall has really been watched. Wall time lies: the machine sleeps, the agent is stopped, the user presses
// Ctrl-Z, a debugger holds a rank. Such time must not add up to a hang, so it is taken off.
// Invariant: the answer depends on the set of samples with at <= now. Bounded: one slot a second, `capacity` of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/detect/hang.h"

namespace lockstep::detect {

// The time up to a moment, for questions by the thousand.
class AwakeUntil {
 public:
  // The time from then on, less the seconds without samples, with a traced rank, or in which every rank was stopped or
  // frozen, or of which nothing is known any more. Cost: logarithmic.
  Seconds Since(Nanos from) const;

 private:
  friend class AwakeClock;
  struct Second {
    int64_t number;
    Nanos seen, end;
    bool counts;
    Nanos lost_behind;  // what does not count, from its end on
  };
  AwakeUntil(Nanos known_from, Nanos to) : known_from_(known_from), to_(to) {}

  Nanos known_from_, to_;
  std::vector<Second> seconds_;
};

class AwakeClock {
 public:
  explicit AwakeClock(size_t capacity) : capacity_(capacity) {}
  void Add(const RankSample& sample);
  void Clear() {
    slots_.clear();
    known_from_ = {};
  }
  // Cost: linear in the slots.
  AwakeUntil Until(Nanos to) const;

 private:
  // When each thing was first seen within the second.
  struct Slot {
    Nanos seen = kNever, awake = kNever, traced = kNever;
  };
  static constexpr Nanos kNever{INT64_MAX};
  static bool Counts(const Slot& slot, Nanos now) { return slot.awake <= now && now < slot.traced; }

  size_t capacity_;
  std::map<int64_t, Slot> slots_;  // by second
  Nanos known_from_;               // earlier slots were forgotten
};

// State T, or held by a cgroup freezer.
bool Halted(const RankSample& sample);
// Neither done nor dead: exits are another detector's matter.
bool Unfinished(const RankSample& sample);

}  // namespace lockstep::detect
