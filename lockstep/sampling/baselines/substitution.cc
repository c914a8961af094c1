#include "lockstep/sampling/baselines/substitution.h"

#include <algorithm>

namespace lockstep::sampling::baselines {

bool FillOnceCache::Take(Item item) {
  if (held_.contains(item)) return true;
  ++misses_;
  if (held_.size() < capacity_) {
    held_.insert(item);
    items_.push_back(item);
  }
  return false;
}

std::vector<Item> Quiver::Epoch(std::span<const Item> items) {
  std::vector<Item> due(items.begin(), items.end());
  Shuffle(std::span(due), rng_);
  std::vector<Item> order;
  while (!due.empty()) {
    const auto window = static_cast<ptrdiff_t>(std::min<uint64_t>(due.size(), kOversample * options_.batch));
    std::stable_partition(due.begin(), due.begin() + window, [&](Item item) { return cache_.Holds(item); });
    const auto batch = static_cast<ptrdiff_t>(std::min<uint64_t>(due.size(), options_.batch));
    for (ptrdiff_t i = 0; i < batch; ++i) {
      cache_.Take(due[static_cast<size_t>(i)]);
      order.push_back(due[static_cast<size_t>(i)]);
    }
    due.erase(due.begin(), due.begin() + batch);
  }
  return order;
}

void Ods::Serve(Item item, std::vector<Item>& order) {
  cache_.Take(item);
  order.push_back(item);
}

// Up to `misses` cached items of the job that it hasn't seen: keys from a place of the cache that is drawn, as many as
// are missing, five times.
std::vector<Item> Ods::Substitutes(size_t misses, std::span<const Item> items) {
  const std::vector<Item>& cached = cache_.items();
  std::vector<Item> found;
  if (cached.empty() || misses == 0) return found;
  for (int attempt = 0; attempt < kTries && found.size() < misses; ++attempt) {
    const size_t cursor = rng_.Below(cached.size());
    for (size_t i = 0; i < std::min(misses, cached.size()) && found.size() < misses; ++i) {
      const Item item = cached[(cursor + i) % cached.size()];
      const bool own = std::binary_search(items.begin(), items.end(), item);
      if (own && !seen_.contains(item) && std::find(found.begin(), found.end(), item) == found.end())
        found.push_back(item);
    }
  }
  return found;
}

std::vector<Item> Ods::Epoch(std::span<const Item> items) {
  seen_.clear();
  std::vector<Item> due(items.begin(), items.end());
  Shuffle(std::span(due), rng_);
  std::vector<Item> order;
  for (size_t next = 0; next < due.size() && order.size() < items.size();) {
    std::vector<Item> hits, misses;
    for (; next < due.size() && hits.size() + misses.size() < options_.batch; ++next) {
      if (seen_.contains(due[next])) continue;
      (cache_.Holds(due[next]) ? hits : misses).push_back(due[next]);
    }
    for (const Item item : hits) seen_.insert(item);
    if (!mark_given_) seen_.insert(misses.begin(), misses.end());
    std::vector<Item> given;
    if (kAlwaysAllowed + cache_.items().size() > seen_.size()) given = Substitutes(misses.size(), items);
    if (mark_given_) seen_.insert(given.begin(), given.end());
    for (const Item item : hits) Serve(item, order);
    for (const Item item : given) Serve(item, order);
    // The rest of the batch is what was asked for; of what was replaced, the mended form asks again later.
    const size_t kept = misses.size() - given.size();
    for (size_t i = 0; i < kept; ++i) Serve(misses[i], order);
    if (!mark_given_) continue;
    seen_.insert(misses.begin(), misses.begin() + static_cast<ptrdiff_t>(kept));
    due.insert(due.end(), misses.begin() + static_cast<ptrdiff_t>(kept), misses.end());
  }
  return order;
}

}  // namespace lockstep::sampling::baselines
