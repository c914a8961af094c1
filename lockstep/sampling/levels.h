// The items that a fixed group of jobs still needs, by level: of the jobs in order of remaining size, an item's level
// is one more than the last that doesn't need it (0: all do). Those that all of order[k..] need are levels 0..k, and
// what levels 0..k-1 excluded is what earlier rounds of a draw have looked at: signature classes, merged as far as a
// draw can tell them apart, for any number of jobs. Cost: Build linear in items × jobs/64; an update O(jobs) at worst,
// usually O(1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

// Which job needs which item: a row of bits for each item, as long as there are jobs.
class NeedTable {
 public:
  explicit NeedTable(uint64_t universe) : universe_(universe) {}
  void Reserve(int jobs);
  bool Needs(size_t job, Item item) const { return (bits_[item * words_ + job / 64] >> (job % 64) & 1U) != 0; }
  void Set(size_t job, Item item, bool needs);
  int Count(Item item) const;
  uint64_t universe() const { return universe_; }

 private:
  uint64_t universe_;
  size_t words_ = 0;
  std::vector<uint64_t> bits_;
};

class Levels {
 public:
  // Of these jobs, ascending by what they have left.
  void Build(const NeedTable& needs, std::vector<int> order);
  void Update(const NeedTable& needs, Item item);  // after a job of the order took it
  std::span<const int> order() const { return order_; }
  // Items on levels [begin, end).
  size_t Count(size_t begin, size_t end) const;
  Item Any(size_t begin, size_t end, Rng& rng) const;  // requires Count(begin, end) >= 1
  size_t LevelOf(Item item) const { return level_[item]; }

 private:
  size_t Compute(const NeedTable& needs, Item item) const;
  void Insert(Item item, size_t level);
  void Remove(Item item);

  std::vector<int> order_;
  std::vector<std::vector<Item>> items_;  // by level; what the last job doesn't need is on none
  std::vector<uint32_t> level_, at_;      // of each item
};

}  // namespace lockstep::sampling
