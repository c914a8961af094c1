#include "lockstep/feed/item_cache.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::feed {
namespace {

bool IsRead(const Content& content) { return content.image.use_count() > 1 || content.file.use_count() > 1; }

}  // namespace

Content ItemCache::Find(uint64_t item, Form form) {
  const auto found = index_.find(Key(item, form));
  if (found == index_.end()) return {};
  ++totals_.at(static_cast<size_t>(form)).hits;
  return entries_[found->second].content;
}

template <typename EvictNext>
bool ItemCache::MakeRoom(uint64_t bytes, const EvictNext& evict) {
  while (used_ + reserved_ + bytes > budget_) {
    if (bytes <= budget_ && evict()) continue;
    ++refused_;
    return false;
  }
  reserved_ += bytes;
  peak_ = std::max(peak_, used_ + reserved_);
  return true;
}

bool ItemCache::Reserve(uint64_t bytes, uint64_t distance) {
  return MakeRoom(bytes, [&] { return EvictOne({distance, false}); });
}

bool ItemCache::ReserveOfAll(uint64_t bytes) {
  return MakeRoom(bytes, [&] { return EvictOne({0, false}) || EvictAny(); });
}

bool ItemCache::EvictAny() {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [](const Entry& entry) { return !IsRead(entry.content); });
  if (found == entries_.end()) return false;
  Evict(static_cast<size_t>(found - entries_.begin()));
  return true;
}

bool ItemCache::EvictOne(std::pair<uint64_t, bool> latest) {
  size_t worst = entries_.size();
  for (size_t looked = 0; looked < std::min(kSampled, entries_.size()); ++looked) {
    hand_ = hand_ + 1 < entries_.size() ? hand_ + 1 : 0;
    const Form form = entries_[hand_].form;
    const std::pair next{distance_(entries_[hand_].item), totals(form).bytes > quota(form)};
    if (next <= latest || IsRead(entries_[hand_].content)) continue;
    latest = next;
    worst = hand_;
  }
  if (worst == entries_.size()) return false;
  Evict(worst);
  return true;
}

void ItemCache::Evict(size_t index) {
  ++totals_.at(static_cast<size_t>(entries_[index].form)).evictions;
  Erase(index);
}

void ItemCache::Put(uint64_t item, Form form, Content content, uint64_t bytes, uint64_t reserved) {
  LS_CHECK(bytes <= reserved && reserved <= reserved_, "{} of {} of {} bytes", bytes, reserved, reserved_);
  reserved_ -= reserved;
  Drop(item, form);
  index_[Key(item, form)] = entries_.size();
  entries_.push_back({item, form, std::move(content), bytes});
  used_ += bytes;
  Totals& totals = totals_.at(static_cast<size_t>(form));
  ++totals.items;
  totals.bytes += bytes;
}

void ItemCache::Drop(uint64_t item, Form form) {
  const auto found = index_.find(Key(item, form));
  if (found != index_.end()) Erase(found->second);
}

void ItemCache::Erase(size_t index) {
  Entry& entry = entries_[index];
  Totals& totals = totals_.at(static_cast<size_t>(entry.form));
  --totals.items;
  totals.bytes -= entry.bytes;
  used_ -= entry.bytes;
  index_.erase(Key(entry.item, entry.form));
  if (index + 1 != entries_.size()) {
    entry = std::move(entries_.back());
    index_[Key(entry.item, entry.form)] = index;
  }
  entries_.pop_back();
}

}  // namespace lockstep::feed
