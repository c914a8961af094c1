#include "lockstep/sampling/order_sampler.h"

#include "lockstep/base/check.h"

namespace lockstep::sampling {

void OrderSampler::Begin(const EpochStart& start) {
  LS_CHECK(Left(start.job) == 0, "job {} has {} items left", start.job, Left(start.job));
  Epoch& epoch = epochs_[start.job];
  epoch = {.order = orders_->Make(start), .place = std::vector<uint32_t>(universe_, kNowhere)};
  LS_CHECK(epoch.order.size() == start.items.size(), "{} of {}", epoch.order.size(), start.items.size());
  for (uint32_t i = 0; i < epoch.order.size(); ++i) epoch.place[epoch.order[i]] = i;
}

void OrderSampler::Leave(int job) {
  epochs_.erase(job);
  orders_->Leave(job);
}

void OrderSampler::Draw(std::span<const int> takers, std::span<Item> picks) {
  for (size_t i = 0; i < takers.size(); ++i) {
    Epoch& epoch = epochs_.at(takers[i]);
    LS_CHECK(epoch.next < epoch.order.size(), "job {} has nothing left", takers[i]);
    picks[i] = epoch.order[epoch.next++];
  }
}

uint64_t OrderSampler::Left(int job) const {
  const auto found = epochs_.find(job);
  return found == epochs_.end() ? 0 : found->second.order.size() - found->second.next;
}

std::optional<uint64_t> OrderSampler::Ahead(int job, Item item) const {
  const auto found = epochs_.find(job);
  if (found == epochs_.end()) return std::nullopt;
  const uint32_t place = found->second.place[item];
  if (place == kNowhere || place < found->second.next) return std::nullopt;
  return place - found->second.next;
}

}  // namespace lockstep::sampling
