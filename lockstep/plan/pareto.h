// Which of several layouts no other beats in everything. Pure.
#pragma once

#include <vector>

#include "lockstep/plan/search.h"

namespace lockstep::plan {

// Of candidates on one cluster, where money goes with time: each that is faster than all that need less memory.
std::vector<Candidate> FrontOfOne(std::vector<Candidate> all);
// Of time, memory and money; by time.
std::vector<Candidate> FrontOfAll(std::vector<Candidate> all);

}  // namespace lockstep::plan
