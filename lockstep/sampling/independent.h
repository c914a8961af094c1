// What jobs do that know nothing of each other: the baseline.
#pragma once

#include "lockstep/sampling/order_sampler.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {

class IndependentOrders final : public Orders {
 public:
  explicit IndependentOrders(const SamplerOptions& options) : seed_(options.seed) {}
  std::vector<Item> Make(const EpochStart& start) override {
    std::vector<Item> order(start.items.begin(), start.items.end());
    Rng rng(KeyOf(Purpose::kEpoch, seed_, start.epoch, start.had, static_cast<uint64_t>(start.job)));
    Shuffle(std::span(order), rng);
    return order;
  }

 private:
  uint64_t seed_;
};

}  // namespace lockstep::sampling
