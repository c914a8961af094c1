// Every layout of a model on one or more clusters: predicted, sorted, the best kept. Exhaustive, so exact: what is left
// out is what does not divide, and what does not fit the memory. The same result on any number of threads. Cost: a
// tenth of a microsecond a candidate (docs/models/plan.md), for what candidates share is computed once.
//
//   const SearchResult result = Search({&cluster, 1}, {.keep = 5});  // cluster: the work on its machine, and the rates
//   if (!result.best.empty()) result.best.front().step.total();
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/plan/memory.h"
#include "lockstep/plan/rates.h"
#include "lockstep/plan/search_space.h"
#include "lockstep/plan/step.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

struct Candidate {
  Workload workload;
  StepTime step;
  MemoryUse memory;
};
Candidate Predict(const Workload& workload, const Rates& rates);

// What to make least: the time of a step, dollars or energy for it. With one cluster all are the same.
enum class Objective { kTime, kCost, kEnergy };
double Dollars(const Candidate& candidate);  // of a step; 0: the machine has no price
double Joules(const Candidate& candidate);   // of a step; 0: its power is not known
double ValueOf(const Candidate& candidate, Objective objective);
double ValuePerSecond(const Workload& workload, Objective objective);

struct SearchOptions {
  size_t keep = 5;
  Objective objective = Objective::kTime;
  SearchSpace space = {};
  unsigned threads = 1;
  // Asked and told every tenth of a second, by the thread that called: whether to end with what there is; how far it
  // is.
  std::function<bool()> stops = nullptr;
  std::function<void(double share)> progress = nullptr;
};

// A machine with its rates, and how many: the layout, the microbatch and recomputation of `base` are taken for nothing.
struct Cluster {
  Workload base;
  Rates rates;
};

struct SearchResult {
  std::vector<Candidate> best;  // that fit, the best first
  // Of those that fit, each that no other beats in time, memory and money; by time. Any number of layers may be
  // computed again, but in a whole space. Money: accelerators x time, where a machine has no price.
  std::vector<Candidate> pareto;
  int64_t tried = 0, fitting = 0;  // as needed is not tried where none is needed
  std::vector<Candidate> nearest;  // where none fits: one, that which needs least of what there is
  bool stopped = false;
};

SearchResult Search(std::span<const Cluster> clusters, const SearchOptions& options);

}  // namespace lockstep::plan
