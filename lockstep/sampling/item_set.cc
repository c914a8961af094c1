#include "lockstep/sampling/item_set.h"

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/base/file.h"

namespace lockstep::sampling {

ItemSet::ItemSet(std::span<const ItemRange> ranges) {
  for (const ItemRange& range : ranges) {
    LS_CHECK(range.first <= range.last && (ranges_.empty() || ranges_.back().last < range.first), "{}-{}", range.first,
             range.last);
    if (!ranges_.empty() && ranges_.back().last + 1 == range.first) {
      ranges_.back().last = range.last;
    } else {
      ranges_.push_back(range);
      before_.push_back(size_);
    }
    size_ += range.last - range.first + 1;
  }
}

ItemSet ItemSet::Below(uint64_t size) {
  if (size == 0) return ItemSet();
  const ItemRange all{0, size - 1};
  return ItemSet(std::span(&all, 1));
}

ItemSet ItemSet::Union(std::span<const ItemSet> sets) {
  std::vector<ItemRange> all;
  for (const ItemSet& set : sets) all.insert(all.end(), set.ranges_.begin(), set.ranges_.end());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ItemRange> merged;
  for (const ItemRange& range : all) {
    if (!merged.empty() && range.first <= merged.back().last)
      merged.back().last = std::max(merged.back().last, range.last);
    else
      merged.push_back(range);
  }
  return ItemSet(merged);
}

uint64_t ItemSet::At(uint64_t index) const {
  const auto after = std::upper_bound(before_.begin(), before_.end(), index);
  const auto at = static_cast<size_t>(after - before_.begin()) - 1;
  return ranges_[at].first + (index - before_[at]);
}

std::optional<uint64_t> ItemSet::IndexOf(uint64_t id) const {
  const auto after = std::upper_bound(ranges_.begin(), ranges_.end(), id,
                                      [](uint64_t value, const ItemRange& range) { return value < range.first; });
  if (after == ranges_.begin()) return std::nullopt;
  const auto at = static_cast<size_t>(after - ranges_.begin()) - 1;
  if (id > ranges_[at].last) return std::nullopt;
  return before_[at] + (id - ranges_[at].first);
}

std::string ItemSet::ToString() const {
  std::string text;
  for (const ItemRange& range : ranges_) {
    if (!text.empty()) text += ',';
    text += std::to_string(range.first);
    if (range.last != range.first) text += '-' + std::to_string(range.last);
  }
  return text;
}

absl::StatusOr<std::vector<ItemSet>> ReadItemSets(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseItemSets(text, path);
}

}  // namespace lockstep::sampling
