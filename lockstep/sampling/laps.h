// Where an epoch begins in the common order: which lap (each has an order of its own), and at which place of it. Jobs
// that run together share a lap; one that comes late begins where the lap's leader would be by now if each of its items
// took equally long. A job takes part in a lap once, so its epochs are independent. Thread-compatible.
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
};

struct LapRequest {
  int job = 0;
  double steps = 1;  // that this epoch will take
  int64_t now = 0;   // in steps; depends on time only (sampler.h)
};

class Laps {
 public:
  explicit Laps(uint64_t universe) : universe_(universe) {}
  Lap Begin(const LapRequest& request);
  uint64_t last() const { return number_; }
  // Laps to come have greater numbers: up to this one they were begun in another life of this process.
  void BeginBehind(uint64_t lap);
  void Leave(int job);  // its laps stay known: it may come back

 private:
  // The first that is not yet through is the leader.
  struct Runner {
    int job = 0;
    uint64_t offset = 0;
    int64_t begin = 0;
    double steps = 1;
  };
  uint64_t OffsetAt(int64_t now) const;

  uint64_t universe_;
  uint64_t number_ = 0;
  std::vector<Runner> runners_;  // of this lap
  std::map<int, uint64_t> last_;
};

}  // namespace lockstep::sampling
