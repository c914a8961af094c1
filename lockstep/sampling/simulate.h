// A feed without data: jobs that take their items step by step, and what that costs. The sampler and the cache rule are
// those that serve real jobs.
//
//   LS_ASSIGN_OR_RETURN(const auto sets, ReadItemSets("jobs.txt"));
//   const SimulatedFeed feed = *Simulate(sets, {.cache_items = 256});
//   feed.loads / feed.union_items            // 1 is the least there can be
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/report.h"
#include "lockstep/sampling/item_set.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

struct SimulateOptions {
  std::optional<Policy> policy{};  // none: the one that is predicted to prepare the fewest items
  uint64_t cache_items = 0;
  uint64_t seed = 1;
  std::vector<double> start{};  // of each job, in epochs of the largest set; empty: all at once
  std::vector<double> rates{};  // of each job, items a step; empty: 1 each
  bool again = false;           // a job that is through begins its next epoch, until all had one
  bool fewest_jobs = false;     // evict by the number of outstanding jobs even where the orders are known
  std::stop_token stop{};       // once it is asked for, the feed ends where it is
};

struct SimulatedJob {
  int64_t first_step = 0, last_step = 0;
  uint64_t items = 0, prepared = 0;  // prepared: not there yet when this job took it
  std::vector<uint64_t> order;       // ids, as delivered
};

struct SimulatedFeed {
  Policy policy = Policy::kCommon;
  bool by_next_use = true;  // how the cache evicted
  uint64_t loads = 0, union_items = 0, taken = 0;
  std::vector<std::pair<Policy, uint64_t>> predicted;  // loads, where the policy was chosen
  std::vector<SimulatedJob> jobs;
};

// One epoch of each job, unless `again`. kInvalidArgument: too few starts or rates, ones that are no such numbers, more
// items than fit (2^27 over all jobs).
absl::StatusOr<SimulatedFeed> Simulate(std::span<const ItemSet> sets, const SimulateOptions& options);
// What each policy would prepare, by rehearsals with other chances than options.seed gives: a choice by it depends on
// sets, times and cache, on nothing of the real orders. A quarter of the cache is held back, against bad luck.
struct Rehearsal {
  std::vector<std::pair<Policy, uint64_t>> loads;
  Policy Best() const;               // of the fewest loads; of equal ones, the first of common, packed, aligned, dsa
  uint64_t Of(Policy policy) const;  // UINT64_MAX: not rehearsed
};
absl::StatusOr<Rehearsal> Rehearse(std::span<const ItemSet> sets, const SimulateOptions& real,
                                   std::span<const Policy> policies);
Json ToJson(const SimulatedFeed& feed, bool with_orders);

}  // namespace lockstep::sampling
