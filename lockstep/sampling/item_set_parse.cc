#include <algorithm>
#include <charconv>

#include "lockstep/base/split.h"
#include "lockstep/sampling/item_set.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kIdLimit = uint64_t{1} << 63;

// A range, and where it stands.
struct Found {
  ItemRange range{};
  size_t column = 0;  // from 1
};

std::string Shown(std::string_view text) {
  constexpr size_t kMost = 40;
  return text.size() <= kMost ? std::string(text) : std::string(text.substr(0, kMost)) + "...";
}

class Parser {
 public:
  Parser(std::string_view text, TextPlace place) : text_(text), place_(place) {}

  absl::StatusOr<std::vector<Found>> Parse() {
    std::vector<Found> found;
    if (text_.find_first_not_of(" \t") == text_.npos)
      return Error(1, "an empty line; expected the items of a job, such as 0-3999,5000");
    for (;;) {
      const size_t comma = std::min(text_.find(',', at_), text_.size());
      LS_ASSIGN_OR_RETURN(const Found next, Range(comma));
      found.push_back(next);
      if (comma == text_.size()) return found;
      at_ = comma + 1;
    }
  }

  absl::Status Error(size_t column, std::string_view what) const {
    return InvalidArgument("{}:{}:{}: {}", place_.path, place_.line, column, what);
  }

 private:
  void SkipBlanks(size_t end) {
    while (at_ < end && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  // From at_, which it moves behind the number.
  absl::StatusOr<uint64_t> Id(size_t end) {
    uint64_t id = 0;
    const auto [rest, error] = std::from_chars(text_.data() + at_, text_.data() + end, id);
    const std::string shown = Shown(text_.substr(at_, end - at_));
    if (error == std::errc::result_out_of_range || (error == std::errc() && id >= kIdLimit))
      return Error(at_ + 1, fmt::format("item id {} is too large: ids are below 2^63", shown));
    if (shown.starts_with('-')) return Error(at_ + 1, fmt::format("a negative item id, {}: ids are 0 or more", shown));
    if (error != std::errc())
      return Error(at_ + 1, fmt::format("expected an item id or a range such as 0-3999, found \"{}\"", shown));
    at_ = static_cast<size_t>(rest - text_.data());
    return id;
  }

  absl::StatusOr<Found> Range(size_t end) {
    SkipBlanks(end);
    Found found{.column = at_ + 1};
    LS_ASSIGN_OR_RETURN(found.range.first, Id(end));
    found.range.last = found.range.first;
    SkipBlanks(end);
    if (at_ < end && text_[at_] == '-') {
      ++at_;
      SkipBlanks(end);
      LS_ASSIGN_OR_RETURN(found.range.last, Id(end));
      SkipBlanks(end);
    }
    if (at_ < end)
      return Error(at_ + 1, fmt::format("expected a comma, found \"{}\"", Shown(text_.substr(at_, end - at_))));
    if (found.range.last < found.range.first)
      return Error(found.column, fmt::format("range {}-{} is reversed; write {}-{}", found.range.first,
                                             found.range.last, found.range.last, found.range.first));
    return found;
  }

  std::string_view text_;
  TextPlace place_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<ItemSet> ParseItemSet(std::string_view text, TextPlace place) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  Parser parser(text, place);
  LS_ASSIGN_OR_RETURN(std::vector<Found> found, parser.Parse());
  std::stable_sort(found.begin(), found.end(),
                   [](const Found& a, const Found& b) { return a.range.first < b.range.first; });
  std::vector<ItemRange> ranges;
  const Found* widest = nullptr;
  for (const Found& next : found) {
    if (widest != nullptr && next.range.first <= widest->range.last)
      return parser.Error(std::max(next.column, widest->column),
                          fmt::format("item {} is already in this set, at column {}", next.range.first,
                                      std::min(next.column, widest->column)));
    ranges.push_back(next.range);
    widest = &next;
  }
  return ItemSet(ranges);
}

absl::StatusOr<std::vector<ItemSet>> ParseItemSets(std::string_view text, const std::string& path) {
  if (text.empty()) return InvalidArgument("{}:1:1: an empty file; expected one line of item ids for each job", path);
  std::vector<ItemSet> sets;
  for (int line = 1; !text.empty(); ++line) {
    LS_ASSIGN_OR_RETURN(ItemSet set, ParseItemSet(TakeLine(text), {.path = path, .line = line}));
    sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace lockstep::sampling
