#include "lockstep/sampling/common_order.h"

#include <algorithm>

#include "lockstep/sampling/permutation.h"
#include "lockstep/sampling/random.h"

namespace lockstep::sampling {

std::vector<Item> CommonOrders::Make(const EpochStart& start) {
  const double steps = std::max(1.0, static_cast<double>(start.items.size()) / start.rate);
  const Lap lap = laps_.Begin({.job = start.job, .steps = steps, .now = start.now});
  const Permutation order(options_.universe, KeyOf(Purpose::kLap, options_.seed, lap.number));
  std::vector<std::pair<uint64_t, Item>> placed;
  placed.reserve(start.items.size());
  for (const Item item : start.items) {
    const uint64_t at = order.IndexOf(item);
    placed.emplace_back(at >= lap.offset ? at - lap.offset : at + options_.universe - lap.offset, item);
  }
  std::sort(placed.begin(), placed.end());
  std::vector<Item> items;
  items.reserve(placed.size());
  for (const auto& [place, item] : placed) items.push_back(item);
  return items;
}

}  // namespace lockstep::sampling
