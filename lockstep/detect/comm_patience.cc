#include "lockstep/detect/comm_patience.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <ranges>
#include <utility>
#include <vector>

namespace lockstep::detect {
namespace {

using trace::CommOp;

constexpr size_t kFewestMoments = 100;  // to tell how long it is quiet in between

bool HasCompleted(const CommOp& op) { return op.state == trace::OpState::kCompleted && op.duration_ns >= 0; }

// What all but 1 % are at most. Requires some.
int64_t Usual(std::vector<int64_t> values) {
  const auto rare = values.begin() + static_cast<std::ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), rare, values.end());
  return *rare;
}

}  // namespace

std::optional<Seconds> LongestWait(const trace::CommLog& log) {
  int64_t longest = -1;
  for (const CommOp& op : log.ops) {
    if (op.state == trace::OpState::kCompleted || op.duration_ns >= 0) continue;  // failed ones have ended, too
    if (op.age_ns < 0) return std::nullopt;
    longest = std::max(longest, op.age_ns);
  }
  return longest < 0 ? std::nullopt : std::optional(ToSeconds(Nanos{longest}));
}

Seconds UsualWait(const trace::CommLog& log) {
  std::vector<int64_t> durations;
  for (const CommOp& op : log.ops)
    if (HasCompleted(op)) durations.push_back(op.duration_ns);
  return durations.empty() ? Seconds{0} : ToSeconds(Nanos{Usual(std::move(durations))});
}

// Ranks that wait at the same moment are no second time: it may be for the same one.
Seconds RepeatedWait(const trace::CommLog& log) {
  const auto tells = [](const CommOp& op) { return HasCompleted(op) && op.created_ns >= 0; };
  const CommOp* longest = nullptr;
  for (const CommOp& op : log.ops)
    if (tells(op) && (longest == nullptr || op.duration_ns > longest->duration_ns)) longest = &op;
  if (longest == nullptr) return Seconds{0};
  const int64_t begin = longest->created_ns, end = begin + longest->duration_ns;
  int64_t again = 0;
  for (const CommOp& op : log.ops)
    if (tells(op) && (op.created_ns >= end || op.created_ns + op.duration_ns <= begin))
      again = std::max(again, op.duration_ns);
  return ToSeconds(Nanos{again});
}

std::optional<Seconds> UsualQuiet(const trace::CommLog& log) {
  std::vector<int64_t> moments;
  for (const CommOp& op : log.ops) {
    if (op.created_ns < 0) continue;
    moments.push_back(op.created_ns);
    if (HasCompleted(op)) moments.push_back(op.created_ns + op.duration_ns);
  }
  if (moments.size() < kFewestMoments) return std::nullopt;
  std::sort(moments.begin(), moments.end());
  std::adjacent_difference(moments.begin(), moments.end(), moments.begin());
  std::nth_element(moments.begin() + 1, moments.begin() + 2, moments.end(), std::greater<>());
  return ToSeconds(Nanos{moments[2]}) * kQuiets;
}

std::optional<Seconds> QuietFor(const trace::CommLog& log) {
  if (log.quiet_ns.empty()) return std::nullopt;
  return ToSeconds(Nanos{std::ranges::min(std::views::values(log.quiet_ns))});
}

std::string QuietText(const trace::CommLog& log, const CommThresholds& thresholds) {
  const std::optional<Seconds> quiet = QuietFor(log);
  if (!quiet || *quiet < thresholds.hang || log.ops.empty() || LongestWait(log)) return "";
  if (*quiet < UsualQuiet(log).value_or(thresholds.hang)) return "";
  const auto longest =
      std::ranges::max_element(log.quiet_ns, [](const auto& a, const auto& b) { return a.second < b.second; });
  return fmt::format(
      "no rank has launched or ended anything for {:.1f} s, and nobody waits in what is told: whether the job hangs "
      "elsewhere can't be told; rank {} has been quiet for longest, {:.1f} s",
      quiet->value, longest->first, ToSeconds(Nanos{longest->second}).value);
}

}  // namespace lockstep::detect
