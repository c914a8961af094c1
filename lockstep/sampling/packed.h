// A common order of units: items that no two of which any job reads, packed together, so that more jobs move on with
// each unit and they drift apart less. A job takes its one item of a unit when the order comes to it; a uniform order
// of units is a uniform order of each job's items. Units are made of the sets that are known when a lap begins. A job
// that was not known may have several items of one unit: one of them, by chance, stays there and the others go to
// places by chance, which is uniform again (docs/models/feed.md). Cost: a lap O(items + classes²), where a class is
// what the same jobs read; above kMostClasses nothing is packed.
#pragma once

#include "lockstep/sampling/laps.h"
#include "lockstep/sampling/order_sampler.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {

// The unit of each item, 0..count-1.
struct Units {
  std::vector<uint32_t> of;
  uint32_t count = 0;
};
// Of sets over `universe` items; items of no set are units of their own.
Units Pack(uint64_t universe, std::span<const std::vector<Item>* const> sets);

class PackedOrders final : public Orders {
 public:
  explicit PackedOrders(const SamplerOptions& options) : options_(options), laps_(options.universe) {}
  void Announce(int job, std::span<const Item> items, double /*rate*/) override {
    known_[job].assign(items.begin(), items.end());
  }
  std::vector<Item> Make(const EpochStart& start) override;
  void Leave(int job) override;

 private:
  SamplerOptions options_;
  Laps laps_;
  std::map<int, std::vector<Item>> known_;
  Units units_;
  uint64_t packed_for_ = 0;  // number of a lap
};

}  // namespace lockstep::sampling
