// Coupled orders. A job that begins chooses, of the epochs that run, the one it will share most with, its partner, and
// takes what both need in the same step as the partner wherever a uniform order allows it: of two jobs of a and b
// items, each common item coincides with probability (steps in common)/max(a, b), and no uniform scheme can do better.
//
// How: of the m common items, the partner takes M in the steps that both run. In a uniform order of the job, K of the m
// fall into those steps, hypergeometric like M; K is drawn by M's quantile, min(K, M) items stay where the partner has
// them, and all else goes into the places left, by chance. Proof of uniformity: docs/models/feed.md.
//
// Two epochs of one job hang on one root only if both lie within the root's time, where they are independent.
// Cost: linear in the items of the universe, of the job and of each epoch that runs, once for each epoch.
#pragma once

#include <deque>

#include "lockstep/sampling/order_sampler.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {

class AlignedOrders final : public Orders {
 public:
  explicit AlignedOrders(const SamplerOptions& options) : options_(options) {}
  std::vector<Item> Make(const EpochStart& start) override;

 private:
  struct Window {
    int job = 0;
    int64_t begin = 0;
    double rate = 1;
    std::vector<Item> order{};
    uint64_t root = 0;  // number of the window at the root of its tree
    uint64_t number = 0;
    double End() const { return static_cast<double>(begin) + static_cast<double>(order.size()) / rate; }
  };
  void Forget(double now);  // windows that are over, and trees without one
  bool MayCouple(const Window& partner, const EpochStart& start, double end) const;
  const Window* ChoosePartner(const EpochStart& start, const std::vector<bool>& wanted) const;

  SamplerOptions options_;
  std::deque<Window> windows_;                        // that may still run; partners of those to come
  std::map<std::pair<uint64_t, int>, bool> in_tree_;  // (root, job): whether all its epochs there lie within the root
  uint64_t windows_made_ = 0;
};

}  // namespace lockstep::sampling
