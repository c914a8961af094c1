#include "lockstep/sampling/levels.h"

#include <bit>

#include "lockstep/base/check.h"

namespace lockstep::sampling {

void NeedTable::Reserve(int jobs) {
  const auto words = static_cast<size_t>(jobs + 63) / 64;
  if (words <= words_) return;
  std::vector<uint64_t> wider(universe_ * words);
  for (uint64_t item = 0; item < universe_; ++item) {
    for (size_t word = 0; word < words_; ++word) wider[item * words + word] = bits_[item * words_ + word];
  }
  bits_ = std::move(wider);
  words_ = words;
}

void NeedTable::Set(size_t job, Item item, bool needs) {
  uint64_t& word = bits_[item * words_ + job / 64];
  const uint64_t bit = uint64_t{1} << (job % 64);
  word = needs ? word | bit : word & ~bit;
}

int NeedTable::Count(Item item) const {
  int count = 0;
  for (size_t word = 0; word < words_; ++word) count += std::popcount(bits_[item * words_ + word]);
  return count;
}

void Levels::Build(const NeedTable& needs, std::vector<int> order) {
  order_ = std::move(order);
  items_.assign(order_.size(), {});
  level_.assign(needs.universe(), 0);
  at_.assign(needs.universe(), 0);
  for (Item item = 0; item < needs.universe(); ++item) Insert(item, Compute(needs, item));
}

size_t Levels::Compute(const NeedTable& needs, Item item) const {
  size_t level = order_.size();
  while (level > 0 && needs.Needs(static_cast<size_t>(order_[level - 1]), item)) --level;
  return level;
}

void Levels::Insert(Item item, size_t level) {
  level_[item] = static_cast<uint32_t>(level);
  if (level == items_.size()) return;
  at_[item] = static_cast<uint32_t>(items_[level].size());
  items_[level].push_back(item);
}

void Levels::Remove(Item item) {
  if (level_[item] == items_.size()) return;
  std::vector<Item>& items = items_[level_[item]];
  items[at_[item]] = items.back();
  at_[items.back()] = at_[item];
  items.pop_back();
}

void Levels::Update(const NeedTable& needs, Item item) {
  const size_t level = Compute(needs, item);
  if (level == level_[item]) return;
  Remove(item);
  Insert(item, level);
}

size_t Levels::Count(size_t begin, size_t end) const {
  size_t count = 0;
  for (size_t level = begin; level < end; ++level) count += items_[level].size();
  return count;
}

Item Levels::Any(size_t begin, size_t end, Rng& rng) const {
  size_t at = rng.Below(Count(begin, end));
  for (size_t level = begin; level < end; ++level) {
    if (at < items_[level].size()) return items_[level][at];
    at -= items_[level].size();
  }
  LS_CHECK(false, "levels {}..{}", begin, end);
}

}  // namespace lockstep::sampling
