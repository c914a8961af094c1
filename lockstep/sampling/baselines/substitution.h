// Loaders that serve first what a cache holds, to compare with. Each keeps one cache for all jobs, filled until it is
// full and never emptied, as MinIO does (CoorDL, VLDB 2021).
#pragma once

#include <map>
#include <unordered_set>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling::baselines {

// MinIO: what came first stays; of N items C are hits in each epoch.
class FillOnceCache {
 public:
  explicit FillOnceCache(uint64_t capacity) : capacity_(capacity) {}
  bool Take(Item item);  // true if it was there
  bool Holds(Item item) const { return held_.contains(item); }
  const std::vector<Item>& items() const { return items_; }
  uint64_t misses() const { return misses_; }

 private:
  uint64_t capacity_, misses_ = 0;
  std::unordered_set<Item> held_;
  std::vector<Item> items_;
};

struct SubstitutionOptions {
  uint64_t batch = 256;
  uint64_t cache_items = 0;
  uint64_t seed = 0;
};

// Quiver (FAST 2020): of ten batches' worth of items that are due, hits come first. Exactly once; cached items lead.
class Quiver {
 public:
  explicit Quiver(const SubstitutionOptions& options)
      : options_(options), cache_(options.cache_items), rng_(options.seed) {}
  // One epoch of a job, as it is delivered.
  std::vector<Item> Epoch(std::span<const Item> items);
  uint64_t misses() const { return cache_.misses(); }

 private:
  static constexpr uint64_t kOversample = 10;
  SubstitutionOptions options_;
  FillOnceCache cache_;
  Rng rng_;
};

// Seneca's opportunistic sampling (FAST 2026) as its code has it: the items of a batch that no cache holds are replaced
// by cached ones that the job hasn't seen. What was asked for counts as seen, what was given instead doesn't: the one
// is skipped for this epoch, the other comes again. `mark_given` mends that, as its paper describes it; cached items
// still lead.
class Ods {
 public:
  Ods(const SubstitutionOptions& options, bool mark_given)
      : options_(options), mark_given_(mark_given), cache_(options.cache_items), rng_(options.seed) {}
  std::vector<Item> Epoch(std::span<const Item> items);
  uint64_t misses() const { return cache_.misses(); }

 private:
  static constexpr size_t kAlwaysAllowed = 500;
  static constexpr int kTries = 5;
  void Serve(Item item, std::vector<Item>& order);
  std::vector<Item> Substitutes(size_t misses, std::span<const Item> items);

  SubstitutionOptions options_;
  bool mark_given_;
  FillOnceCache cache_;
  Rng rng_;
  std::unordered_set<Item> seen_;  // of the job, in this epoch
};

}  // namespace lockstep::sampling::baselines
