// Every layout of a model on a machine: predicted, sorted, the best kept. Exhaustive, so exact: what is left out is
// what does not divide, and what does not fit the memory. Cost: half a microsecond a candidate.
//
//   const SearchResult result = Search(base, rates, {.keep = 5});     // base: the model, the work, the machine, how
//   many result.best.front().step.total();
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/memory.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Candidate {
  Workload workload;
  StepTime step;
  MemoryUse memory;
};
// "tp 8, pp 4, dp 2, vp 5, zero 1, mbs 1, recompute none".
std::string LayoutText(const Workload& workload);

struct SearchResult {
  std::vector<Candidate> best;    // that fit, the fastest first
  std::vector<Candidate> pareto;  // each faster than all that need less memory, by memory
  int64_t tried = 0, fitting = 0;
  std::vector<Candidate> nearest;  // where none fits: one, that which needs least
};

struct SearchOptions {
  size_t keep = 5;
};

// Takes the layout, the microbatch and recomputation of `base` for nothing.
SearchResult Search(const Workload& base, const Rates& rates, const SearchOptions& options);

}  // namespace lockstep::plan
