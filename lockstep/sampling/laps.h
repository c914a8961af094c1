// Where an epoch begins in the common order: in which lap (each has an order of its own), and at which place of it.
// Jobs that run together share a lap; one that comes late begins where the lap's leader would be by now if each of its
// items took equally long, or, if the cache bridges the distance, where the leader began. Paced laps also say how far
// the lap gets in the time of the epoch, its window, where the longest epoch of those announced takes a whole lap.
// Invariants: places depend on times and sizes only, never on progress (sampler.h says why); the windows that a job had
// of one lap are disjoint, so its epochs are independent. Times are in any unit ("steps"). Thread-compatible.
//
//   Laps laps(dataset.size());
//   const Lap lap = laps.Begin({.job = 3, .steps = 4000, .now = 1000});
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace lockstep::sampling {

struct Lap {
  uint64_t number = 0;
  uint64_t offset = 0;  // place in the lap's order that comes first
  uint64_t window = 0;  // places that the lap goes on by during the epoch; 0: the whole lap
  bool operator==(const Lap&) const = default;
};

struct LapRequest {
  uint64_t job = 0;
  double steps = 1;    // that this epoch will take; 0: nobody knows yet, see Pace()
  uint64_t items = 0;  // of the epoch
  int64_t now = 0;     // in steps; depends on time only
};

class Laps {
 public:
  // `reach`: a follower so many places behind still finds in the cache what the leader left.
  explicit Laps(uint64_t universe, uint64_t reach = 0) : universe_(universe), reach_(reach) {}
  void SetPaced(bool paced) { paced_ = paced; }
  // A job that is in, and how long its epochs take (0: unknown): whoever begins a lap before may count on it.
  void Announce(uint64_t job, double steps) { announced_[job] = steps; }
  Lap Begin(const LapRequest& request);
  // How long the epoch that it has begun takes, if nobody knew when it began.
  void Pace(uint64_t job, double steps);
  // The job goes on in an epoch in lap `number`, which began in another life of it or of this process.
  void GoOn(uint64_t job, uint64_t number);
  void Leave(uint64_t job);   // what it had of laps stays known: it may come back
  void Forget(uint64_t job);  // a job of that name that is another: it may have any lap

 private:
  // Of this lap. The first that is not yet through is the leader. Places are counted on, beyond the end of the lap.
  struct Runner {
    uint64_t job = 0, place = 0, places = 0;
    int64_t begin = 0;
    double steps = 1;
  };
  // What a job has had of a lap: places [first, end), of which windows took theirs.
  struct Had {
    uint64_t number = 0, first = 0, end = 0;
  };
  uint64_t ClockPlace(int64_t now) const;
  uint64_t WindowAt(double places_a_step, const LapRequest& request) const;
  double LongestEpoch(const LapRequest& request) const;
  bool GoesOnInLap(const LapRequest& request, const Had& had, Runner& runner) const;

  uint64_t universe_, reach_;
  bool paced_ = false;
  uint64_t number_ = 0;
  std::vector<Runner> runners_;
  std::map<uint64_t, double> announced_;
  std::map<uint64_t, Had> had_;
};

}  // namespace lockstep::sampling
