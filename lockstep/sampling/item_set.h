// Which items a job reads: ids as disjoint ranges in ascending order, so that 0-999999999 is sixteen bytes. Ids are
// below 2^63. Immutable. Cost: all but Union are logarithmic in the number of ranges.
//
//   LS_ASSIGN_OR_RETURN(const ItemSet set, ParseItemSet("0-3999,5000", {.path = "jobs.txt", .line = 1}));
//   set.size() == 4001; set.At(4000) == 5000; set.IndexOf(5000) == 4000
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::sampling {

struct ItemRange {
  uint64_t first = 0, last = 0;  // both within
};

class ItemSet {
 public:
  ItemSet() = default;
  // Requires ranges that are ascending, disjoint and not reversed; neighbours are joined.
  explicit ItemSet(std::span<const ItemRange> ranges);
  static ItemSet Below(uint64_t size);
  static ItemSet Union(std::span<const ItemSet> sets);

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  uint64_t At(uint64_t index) const;  // the index-th in ascending order; requires index < size()
  std::optional<uint64_t> IndexOf(uint64_t id) const;
  bool Contains(uint64_t id) const { return IndexOf(id).has_value(); }
  std::span<const ItemRange> ranges() const { return ranges_; }
  std::string ToString() const;  // as ParseItemSet reads it
  friend bool operator==(const ItemSet& a, const ItemSet& b) { return a.ToString() == b.ToString(); }

 private:
  std::vector<ItemRange> ranges_;
  std::vector<uint64_t> before_;  // items in the ranges before this one
  uint64_t size_ = 0;
};

struct TextPlace {
  std::string_view path;
  int line = 1;
};

// "3,17,20-40". kInvalidArgument, with line and column: an empty set, what is no id, a reversed range, an id twice.
absl::StatusOr<ItemSet> ParseItemSet(std::string_view text, TextPlace place);
// One set a line, at least one. `path` is for messages.
absl::StatusOr<std::vector<ItemSet>> ParseItemSets(std::string_view text, const std::string& path);
absl::StatusOr<std::vector<ItemSet>> ReadItemSets(const std::string& path);

}  // namespace lockstep::sampling
