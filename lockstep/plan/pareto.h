// Which of several layouts no other beats in everything. Pure.
#pragma once

#include <vector>

#include "lockstep/plan/search.h"

namespace lockstep::plan {

// Of time, memory and money; by time.
std::vector<Candidate> FrontOfAll(std::vector<Candidate> all);

}  // namespace lockstep::plan
