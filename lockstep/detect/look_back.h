// How far back slowness has to be looked for. A rank is slow that is so more than once in each quarter of the time
// (slow_rank.h), so the time has to hold several of the longest that ranks are by themselves between two collectives: a
// step, where only its end is communicated; far less, where every layer is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/trace/trail_file.h"

namespace lockstep::detect {

// How long ranks were by themselves before a collective, and how many of them.
struct Stretch {
  int64_t ns = 0;
  size_t ranks = 1;
};

struct LookBack {
  size_t first = 0;  // of the stretches
  double share = 1;  // of what is needed, from there on; less than 1: there is no more
};

// `stretches` in their order, of a job of so many `ranks`.
LookBack LookBackTo(const std::vector<Stretch>& stretches, size_t ranks);

// Of trails of one node keeps what a look wants that is taken every few seconds (trace::Thin): of the newest minute, or
// longer where steps take long, about `most` collectives of each rank.
void ThinForALook(std::vector<trace::TrailSnapshot>& trails, size_t most);

}  // namespace lockstep::detect
