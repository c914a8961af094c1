#include "lockstep/sampling/cache_model.h"

#include <algorithm>

namespace lockstep::sampling {

bool CacheModel::Take(Item item) {
  const auto [entry, absent] = held_.try_emplace(item);
  if (absent) {
    ++prepared_;
    entry->second.rank = {0, sequence_++};
  } else if (!entry->second.touched) {
    ranks_.erase({entry->second.rank, item});
  }
  if (!entry->second.touched) touched_.push_back(item);
  entry->second.touched = true;
  return absent;
}

void CacheModel::Place(Item item, Held& held) {
  held.rank.first = badness_(item);
  held.touched = false;
  ranks_.insert({held.rank, item});
}

void CacheModel::EndStep() {
  for (const Item item : touched_) Place(item, held_.at(item));
  touched_.clear();
  while (held_.size() > capacity_) {
    const auto worst = std::prev(ranks_.end());
    held_.erase(worst->second);
    ranks_.erase(worst);
  }
}

void CacheModel::Reassess() {
  std::vector<Item> items;
  for (const auto& [rank, item] : ranks_) items.push_back(item);
  ranks_.clear();
  for (const Item item : items) Place(item, held_.at(item));
}

}  // namespace lockstep::sampling
