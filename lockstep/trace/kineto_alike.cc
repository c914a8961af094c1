#include "lockstep/trace/kineto_alike.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::trace {

std::vector<SegmentKind> KindsByTransfers(const RoleForm& form, const std::vector<OpType>& types) {
  std::vector<std::vector<int>> between(form.cuts - 1);  // what cut it off: kinds of transfers; below 0, one itself
  for (size_t i = 0; i < form.names.size(); ++i) {
    const int kind = 2 * static_cast<int>(types[i]) + (form.names[i] == kExchange ? 1 : 0);
    const int what = 2 * (IsTransfer(types[i]) ? kind : -1 - static_cast<int>(i));
    if (form.input_cut[i] > 0) between[form.input_cut[i] - 1].push_back(what);
    if (form.awaited_cut[i] < between.size()) between[form.awaited_cut[i]].push_back(what + 1);
  }
  std::vector<SegmentKind> kinds;
  std::map<std::vector<int>, size_t> kind_of;
  for (size_t i = 0; i < between.size(); ++i) {
    std::sort(between[i].begin(), between[i].end());
    const bool alone = between[i].empty() || between[i].front() < 0;
    const auto [found, is_new] =
        alone ? std::pair(kind_of.end(), true) : kind_of.emplace(std::move(between[i]), kinds.size());
    if (is_new) kinds.emplace_back();
    (is_new ? kinds.back() : kinds[found->second]).push_back(i);
  }
  return kinds;
}

UsualTime UsualTimeOf(const std::vector<double>& shares) {
  constexpr size_t kFew = 4;
  const double median = Median(shares);
  if (shares.size() < kFew || median <= 0) return {median, std::numeric_limits<double>::infinity()};
  const double spread = RobustDeviation(shares, median) / median;
  return {median, kMedianSpread * spread / std::sqrt(static_cast<double>(shares.size()))};
}

std::vector<SegmentKind> KindsByTime(const SegmentKind& kind, const std::vector<UsualTime>& times) {
  constexpr double kClearly = 1.2;  // times as long
  SegmentKind sorted = kind;
  std::ranges::stable_sort(sorted, {}, [&](size_t i) { return times[i].share; });
  std::vector<SegmentKind> kinds;
  for (const size_t i : sorted) {
    if (kinds.empty() || times[i].share > kClearly * times[kinds.back().back()].share) kinds.emplace_back();
    kinds.back().push_back(i);
  }
  for (SegmentKind& one : kinds) std::ranges::sort(one);
  return kinds;
}

size_t CountOthers(const SegmentKind& kind, const std::vector<UsualTime>& times) {
  constexpr double kSurely = 4;  // standard deviations
  const std::vector<SegmentKind> kinds = KindsByTime(kind, times);
  if (kinds.size() < 2) return 0;
  std::vector<double> errors;  // of a few values it is itself by chance: that of most segments counts
  for (const UsualTime& one : times) errors.push_back(one.error);
  double widest = 1 + kSurely * Median(std::move(errors)), nearest = std::numeric_limits<double>::infinity();
  double before = 0;
  size_t most = 0, of_first = 0;
  for (const SegmentKind& one : kinds) {
    const auto [shortest, longest] = std::ranges::minmax(one, {}, [&](size_t i) { return times[i].share; });
    widest = std::max(widest, times[longest].share / times[shortest].share);
    if (before > 0) nearest = std::min(nearest, times[shortest].share / before);
    before = times[longest].share;
    most = std::max(most, one.size());
    if (one.front() == kind.front()) of_first = one.size();
  }
  return nearest <= widest ? 0 : kind.size() - most - (of_first < most ? 1 : 0);
}

}  // namespace lockstep::trace
