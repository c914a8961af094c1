#include "lockstep/sampling/lap_orders.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::sampling {
namespace {

double StepsOf(size_t items, double rate) { return std::max(1.0, static_cast<double>(items) / rate); }

ItemSet SetOf(std::span<const Item> items) {
  std::vector<ItemRange> ranges;
  for (const Item item : items) {
    if (!ranges.empty() && ranges.back().last + 1 == item)
      ranges.back().last = item;
    else
      ranges.push_back({item, item});
  }
  return ItemSet(ranges);
}

}  // namespace

void LapOrders::Announce(int job, std::span<const Item> items, double rate) {
  laps_.Announce(static_cast<uint64_t>(job), StepsOf(items.size(), rate));
}

std::vector<Item> LapOrders::Make(const EpochStart& start) {
  absl::StatusOr<Stream> stream = Stream::Create(
      {.dataset = ItemSet::Below(options_.universe), .items = SetOf(start.items), .seed = options_.seed});
  LS_CHECK(stream.ok(), "{}", Message(stream.status()));
  stream->Begin(laps_.Begin({.job = static_cast<uint64_t>(start.job),
                             .steps = StepsOf(start.items.size(), start.rate),
                             .items = start.items.size(),
                             .now = start.now}),
                start.epoch);
  std::vector<Item> items;
  items.reserve(start.items.size());
  while (stream->left() > 0) items.push_back(static_cast<Item>(stream->Next()));
  return items;
}

}  // namespace lockstep::sampling
