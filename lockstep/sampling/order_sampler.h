// Policies that decide the whole order of an epoch when it begins.
#pragma once

#include <map>

#include "lockstep/sampling/sampler.h"

namespace lockstep::sampling {

// Makes the order of one epoch of one job: all of start.items, in an order that is uniform whatever orders it made for
// others, and independent of those it made for this job before.
class Orders {
 public:
  virtual ~Orders() = default;
  virtual std::vector<Item> Make(const EpochStart& start) = 0;
  virtual void Announce(int /*job*/, std::span<const Item> /*items*/, double /*rate*/) {}
  virtual void Leave(int /*job*/) {}
};

class OrderSampler final : public Sampler {
 public:
  OrderSampler(const SamplerOptions& options, std::unique_ptr<Orders> orders)
      : universe_(options.universe), orders_(std::move(orders)) {}
  void Announce(int job, std::span<const Item> items, double rate) override { orders_->Announce(job, items, rate); }
  void Begin(const EpochStart& start) override;
  void Leave(int job) override;
  void Draw(std::span<const int> takers, std::span<Item> picks) override;
  uint64_t Left(int job) const override;
  bool Needs(int job, Item item) const override { return Ahead(job, item).has_value(); }
  std::optional<uint64_t> Ahead(int job, Item item) const override;
  bool KnowsOrder() const override { return true; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  struct Epoch {
    std::vector<Item> order;
    std::vector<uint32_t> place;  // of each item of the universe in `order`, or kNowhere
    uint32_t next = 0;
  };

  uint64_t universe_;
  std::unique_ptr<Orders> orders_;
  std::map<int, Epoch> epochs_;
};

}  // namespace lockstep::sampling
