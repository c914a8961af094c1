// Of a model that no layout fits into memory: what keeps it out, and what would make it fit. Each remedy is tried by a
// search before it is named.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/plan/machines.h"
#include "lockstep/plan/search.h"

namespace lockstep::plan {

struct Remedy {
  std::string text;         // "32 x a100-40gb"
  double usd_per_hour = 0;  // of the whole cluster; 0: its machine has no price, or it costs nothing more
};
using Stops = std::function<bool()>;
// The cheapest first: what goes to the host's memory, the two with which a step is fastest, which change nothing of the
// training; a shorter sequence; the fewest layers to freeze; then clusters by their price, then those without one by
// their size. `stops`: asked now and then; once it says so no further one is tried.
std::vector<Remedy> Remedies(const Workload& base, const Rates& rates, const Machines& machines, Stops stops = nullptr);

// "105.2 GiB of 39.6 (tp 8, ...); activations are 60.1 of it".
std::string NeedsText(const Candidate& one);

// "no layout fits the memory: the least is 105.2 GiB of 39.6 (tp 8, ...), of which ...".
std::string WhatWouldFit(const Workload& base, const Candidate& nearest, const Rates& rates, const Machines& machines,
                         const Stops& stops = nullptr);

}  // namespace lockstep::plan
