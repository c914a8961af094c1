// Who is to leave so that no bad machine stays, by explanations of what failed (explanations.h): the likeliest machines
// until they are enough, and then without those that are not needed.
//
// Pure and deterministic. Cost: for each machine that any explanation names, its occurrences and a pass over the list;
// 50,000 explanations of 100 machines each take tenths of a second.
//
//   const Evictions evictions = FindEvictions(explanations, chances, 0.99);
#pragma once

#include <map>

#include "lockstep/detect/explanations.h"

namespace lockstep::detect {

struct Evictions {
  Machines machines;  // none of them can be left out ...
  double chance = 0;  // ... that all that is bad is within them
};

// `chances` to be bad, of each machine that an explanation names.
Evictions FindEvictions(const Explanations& explanations, const std::map<int, double>& chances, double confidence);

}  // namespace lockstep::detect
