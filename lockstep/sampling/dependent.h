// Dependent sampling (Joader, NeurIPS 2022, section 4) for any number of jobs and any sets, with exact chances. In a
// step, of the jobs in ascending order of what they have left, as many as possible take one item of those that all
// need: job i of them with probability c / left[i], nested. A job that doesn't take one of the c takes another of its
// own, and the rest go on without the c. Given all that was taken before, each job's item is uniform among its own.
// Cost: O(jobs) a step, after O(universe) when a group of takers comes for the first time or its sizes change order.
#pragma once

#include <list>

#include "lockstep/sampling/levels.h"
#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

class DependentSampler final : public Sampler {
 public:
  explicit DependentSampler(const SamplerOptions& options)
      : needs_(options.universe), rng_(KeyOf(Purpose::kStep, options.seed, 0)) {}
  void Begin(const EpochStart& start) override;
  void Leave(int job) override;
  void Draw(std::span<const int> takers, std::span<Item> picks) override;
  uint64_t Left(int job) const override;
  bool Needs(int job, Item item) const override;
  std::optional<uint64_t> Ahead(int /*job*/, Item /*item*/) const override { return std::nullopt; }
  bool KnowsOrder() const override { return false; }

 private:
  static constexpr size_t kGroups = 8;  // of takers, remembered
  Levels& GroupOf(std::span<const int> takers);
  bool IsSorted(std::span<const int> order) const;
  void DrawFrom(const Levels& group, std::vector<Item>& drawn);
  Item AnyAbove(int job, size_t level, const Levels& group);
  void Take(int job, Item item);

  NeedTable needs_;
  Rng rng_;
  std::vector<std::vector<Item>> left_;    // by job
  std::vector<std::vector<uint32_t>> at_;  // by job: where in left_ an item of the universe is
  std::list<Levels> groups_;               // the latest first
};

}  // namespace lockstep::sampling
