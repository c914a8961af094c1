// What a cache of prepared items saves. An item that several jobs take in one step is prepared once; what was taken in
// a step may stay behind it as far as there is room. Of too many, the one with the greatest badness goes: with orders
// that are known, what is needed last of all (Belady's rule, no other evicts better); else what the fewest outstanding
// jobs still need. What nobody needs goes first, and stays while there is room, for jobs that may still come.
// Cost: O(log capacity) a take.
//
//   CacheModel cache(256, [&](Item item) { return BadnessOf(item); });
//   cache.Take(item); ... cache.EndStep();
#pragma once

#include <functional>
#include <set>
#include <unordered_map>
#include <vector>

#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

inline constexpr int64_t kUnneeded = INT64_MAX;

class CacheModel {
 public:
  using Badness = std::function<int64_t(Item)>;
  CacheModel(uint64_t capacity, Badness badness) : capacity_(capacity), badness_(std::move(badness)) {}

  // True if it had to be prepared.
  bool Take(Item item);
  void EndStep();
  // After jobs came or went: the badness of all may be another.
  void Reassess();
  bool Holds(Item item) const { return held_.contains(item); }
  uint64_t prepared() const { return prepared_; }
  uint64_t size() const { return held_.size(); }

 private:
  using Rank = std::pair<int64_t, uint64_t>;  // badness; of equal ones, the latest goes first
  struct Held {
    Rank rank;
    bool touched = false;
  };
  void Place(Item item, Held& held);

  uint64_t capacity_;
  Badness badness_;
  uint64_t prepared_ = 0, sequence_ = 0;
  std::unordered_map<Item, Held> held_;  // cached ones, and those of the step
  std::set<std::pair<Rank, Item>> ranks_;
  std::vector<Item> touched_;  // of the step
};

}  // namespace lockstep::sampling
