// Which trails tell of a job as it is: of several of a rank the newest, without what older epochs left, and without
// what no collector wrote.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/trace/counter.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {

struct ChosenTrails {
  std::vector<TrailSnapshot> trails;  // of each rank one of each library
  std::vector<Counter> counters;      // what was left out
  uint64_t riddles = 0;               // trails of a rank that another process says to be at the same time
  bool senseless = false;             // part of them makes no sense
};

ChosenTrails ChooseTrails(std::vector<TrailSnapshot> trails);

}  // namespace lockstep::trace
