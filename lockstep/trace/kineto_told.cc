#include "lockstep/trace/kineto_told.h"

#include <algorithm>

#include "lockstep/base/number.h"

namespace lockstep::trace {
namespace {

// "[0, 1, 5]"; none where it was shortened ("...") or is something else.
std::optional<std::vector<int>> RankList(std::string_view text) {
  std::vector<int> ranks;
  const size_t open = text.find('[');
  if (open == std::string_view::npos) return std::nullopt;
  text.remove_prefix(open + 1);
  while (!text.starts_with(']')) {
    const std::optional<int> rank = TakeNumber<int>(text);
    if (!rank) return std::nullopt;
    ranks.push_back(*rank);
    text.remove_prefix(std::min(text.find_first_not_of(", "), text.size()));
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

int64_t PlaceOfPeer(const Told& told) { return told.collective.name == "send" ? told.destination : told.source; }

}  // namespace

void ReadCollective(std::string_view key, JsonValue value, Told& told) {
  if (key == kCollectiveName) {
    told.collective.name = value.text();
  } else if (key == "Process Group Name" || key == "Process Group ID") {
    told.group_name = value.text();
  } else if (key == "Process Group Description") {
    told.group_description = value.text();
  } else if (key == "Process Group Ranks") {
    told.ranks = RankList(value.raw());
  } else if (key == "Seq") {
    told.collective.sequence = value.integer().value_or(-1);
  } else if (key == "In msg nelems") {
    told.collective.elements_in = value.integer().value_or(-1);
  } else if (key == "Out msg nelems") {
    told.collective.elements_out = value.integer().value_or(-1);
  } else if (key == "Global rank start") {
    told.start = value.integer().value_or(-1);
  } else if (key == "Global rank stride") {
    told.stride = value.integer().value_or(-1);
  } else if (key == "Group size") {
    told.size = value.integer().value_or(-1);
  } else if (key == "Src Rank") {
    told.source = value.integer().value_or(-1);
  } else if (key == "Dst Rank") {
    told.destination = value.integer().value_or(-1);
  }
}

bool IsTransferKernel(std::string_view name) { return name == "send" || name == "recv" || name == kExchange; }

void FusedTransfers::Add(int64_t begin_ns, const Told& told) {
  if (told.collective.name != "send" && told.collective.name != "recv") return;
  sorted_ = sorted_ && (transfers_.empty() || transfers_.back().first <= begin_ns);
  transfers_.emplace_back(begin_ns, told);
}

std::optional<Told> FusedTransfers::Between(int64_t after_ns, int64_t until_ns) {
  const auto earlier = [](const auto& a, const auto& b) { return a.first < b.first; };
  if (!std::exchange(sorted_, true)) std::stable_sort(transfers_.begin(), transfers_.end(), earlier);
  const auto behind = [&](int64_t time) {
    return std::upper_bound(transfers_.begin(), transfers_.end(), time,
                            [](int64_t wanted, const auto& one) { return wanted < one.first; });
  };
  const auto begin = behind(after_ns), end = behind(until_ns);
  if (begin == end || PlaceOfPeer(begin->second) < 0) return std::nullopt;
  Told fused = begin->second;
  const auto all = [&](const auto& is_so) {
    return std::all_of(begin, end, [&](const auto& one) { return is_so(one.second); });
  };
  if (!all([&](const Told& one) { return one.group_name == fused.group_name; })) return std::nullopt;
  const bool with_one = all([&](const Told& one) { return PlaceOfPeer(one) == PlaceOfPeer(fused); });
  if (with_one && all([&](const Told& one) { return one.collective.name == fused.collective.name; })) return fused;
  fused.source = fused.destination = with_one ? PlaceOfPeer(fused) : -1;
  fused.collective.name = kExchange;
  if (!with_one) fused.collective.elements_in = fused.collective.elements_out = -1;
  return fused;
}

}  // namespace lockstep::trace
