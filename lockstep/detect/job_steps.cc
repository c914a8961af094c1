#include "lockstep/detect/job_steps.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr double kNearly = 0.8;

struct OfOne {  // communicator, or kind of its collectives
  std::vector<int64_t> ends_ns;
  double bytes = 0;  // since all are told
  int64_t count = 0, rest_ns = 0;
};

// The longest time in which nothing at all ends. It counts as the second longest: what came up once, as a pause, sets
// no scale.
struct Pause {
  int64_t end_ns = 0, beyond_ns = 0;

  int64_t Without(int64_t from_ns, int64_t to_ns) const {
    return to_ns - from_ns - (from_ns < end_ns && end_ns <= to_ns ? beyond_ns : 0);
  }
};

// `all` by end.
Pause FindPause(const std::vector<Met>& all, int64_t from_ns) {
  Pause pause;
  int64_t longest_ns = 0, second_ns = 0, before_ns = from_ns;
  for (const Met& one : all) {
    if (one.end_ns <= from_ns) continue;
    const int64_t ns = one.end_ns - std::exchange(before_ns, one.end_ns);
    second_ns = std::max(second_ns, std::min(ns, longest_ns));
    if (ns > longest_ns) pause.end_ns = one.end_ns;
    longest_ns = std::max(longest_ns, ns);
  }
  if (second_ns > 0) pause.beyond_ns = longest_ns - second_ns;
  return pause;
}

using Communicators = absl::flat_hash_map<uint32_t, OfOne>;

// Of what comes rarely older ones are told live (trace::Thin): all are since one that comes often is.
int64_t AllToldFrom(const std::vector<Met>& all, const Communicators& communicators) {
  constexpr int64_t kRare = 16;
  const auto often =
      std::ranges::find_if(all, [&](const Met& one) { return communicators.at(one.communicator).count > kRare; });
  return (often == all.end() ? all.begin() : often)->end_ns;
}

// What lies between its collectives from one moment to another, a fifth of that time in stretches at least so
// long, as the forward passes are where gradients are reduced while others are computed. What lies before the first and
// after the last is a part of one.
int64_t RestNs(const OfOne& one, int64_t from_ns, int64_t to_ns, const Pause& pause) {
  constexpr double kLongest = 0.2;
  std::vector<int64_t> rests;
  int64_t before_ns = from_ns;
  for (const int64_t end_ns : one.ends_ns)
    if (end_ns > from_ns) rests.push_back(pause.Without(std::exchange(before_ns, end_ns), end_ns));
  if (rests.empty()) return 0;  // it is over, or it is long ago
  rests.push_back(pause.Without(before_ns, to_ns));
  return LargeByShareOfSum(std::move(rests), kLongest);
}

// Those that rest for nearly as long as the one that does for longest; the first of them is the rarest: it ends steps
// at the same place in each. There is one at least, as one carries most.
std::vector<uint32_t> LongestResting(const Communicators& communicators) {
  constexpr double kNextToNothing = 0.001;  // of what the one carries that carries most
  double most_bytes = 0;
  for (const auto& [communicator, own] : communicators) most_bytes = std::max(most_bytes, own.bytes);
  const auto carries = [&](const OfOne& own) { return own.bytes >= kNextToNothing * most_bytes; };
  int64_t longest_ns = 0;
  for (const auto& [communicator, own] : communicators)
    if (carries(own)) longest_ns = std::max(longest_ns, own.rest_ns);
  std::vector<uint32_t> found;
  for (const auto& [communicator, own] : communicators)
    if (carries(own) && static_cast<double>(own.rest_ns) >= kNearly * static_cast<double>(longest_ns))
      found.push_back(communicator);
  std::ranges::sort(found, {}, [&](uint32_t one) { return std::pair{communicators.at(one).count, one}; });
  return found;
}

using Kind = std::pair<uint32_t, uint64_t>;  // function and bytes

// Nearly all of the time lies between two that are as many collectives of the communicator apart, or twice or three
// times as many where some are lost: then how long the former usually take. 0: it doesn't.
int64_t PeriodOf(const std::vector<const Met*>& kind, int64_t from_ns, int64_t to_ns) {
  constexpr double kNearlyAll = 0.85;
  constexpr int64_t kMostTimes = 3;
  std::map<int64_t, std::vector<int64_t>> rests;  // by distance
  for (size_t i = 1; i < kind.size(); ++i)
    rests[kind[i]->number - kind[i - 1]->number].push_back(kind[i]->end_ns - kind[i - 1]->end_ns);
  const auto sum = [](const std::vector<int64_t>& all) { return std::accumulate(all.begin(), all.end(), int64_t{0}); };
  const auto usual =
      std::ranges::max_element(rests, {}, [&](const auto& one) { return std::pair{sum(one.second), one.first}; });
  if (usual == rests.end() || usual->first < 1 || usual->second.size() < JobSteps::kFewest) return 0;
  int64_t regular_ns = 0;
  for (const auto& [distance, all] : rests)
    if (distance % usual->first == 0 && distance <= kMostTimes * usual->first) regular_ns += sum(all);
  const int64_t period_ns = LowerMedian(usual->second);
  // Before its first and after its last a part of one.
  const int64_t ends_ns =
      std::min(kind.front()->end_ns - from_ns, period_ns) + std::min(to_ns - kind.back()->end_ns, period_ns);
  return static_cast<double>(regular_ns + ends_ns) < kNearlyAll * static_cast<double>(to_ns - from_ns) ? 0 : period_ns;
}

// Of a communicator: the kind that comes again soonest, what all do in a step, not what they do in each tenth. Empty
// where none does.
OfOne MostFrequent(const std::vector<const Met*>& all, int64_t from_ns, int64_t to_ns) {
  std::map<Kind, std::vector<const Met*>> kinds;
  for (const Met* one : all)
    if (one->end_ns >= from_ns) kinds[{one->function, one->bytes}].push_back(one);
  OfOne found;
  for (const auto& [kind, own] : kinds) {
    const int64_t period_ns = PeriodOf(own, from_ns, to_ns);
    if (period_ns == 0 || (found.rest_ns != 0 && period_ns >= found.rest_ns)) continue;
    found = {};
    found.rest_ns = period_ns;
    for (const Met* one : own) found.ends_ns.push_back(one->end_ns);
  }
  return found;
}

// One ends with the first collective after a rest. `from_ns` begins one, or is within one.
JobSteps StepsEndedBy(const OfOne& one, int64_t from_ns) {
  constexpr double kRest = 0.5;  // steps differ
  JobSteps steps{.ends_ns = {std::min(from_ns, one.ends_ns.front())}};
  std::vector<int64_t> ends, lengths;
  int64_t before_ns = steps.ends_ns.front();
  for (const int64_t end_ns : one.ends_ns) {
    const int64_t rest_ns = end_ns - std::exchange(before_ns, end_ns);
    if (static_cast<double>(rest_ns) < kRest * static_cast<double>(one.rest_ns)) continue;
    if (!ends.empty()) lengths.push_back(end_ns - ends.back());
    ends.push_back(end_ns);
  }
  steps.usual_ns = lengths.empty() ? one.rest_ns : LowerMedian(std::move(lengths));
  const auto is_part = [&](int64_t end_ns) {
    return static_cast<double>(end_ns - steps.ends_ns.front()) < kNearly * static_cast<double>(steps.usual_ns);
  };
  if (!ends.empty() && is_part(ends.front())) ends.erase(ends.begin());
  steps.ends_ns.insert(steps.ends_ns.end(), ends.begin(), ends.end());
  return steps;
}

}  // namespace

JobSteps FindJobSteps(std::vector<Met> all) {
  if (all.empty()) return {};
  std::ranges::sort(all, {}, [](const Met& one) { return std::tuple{one.end_ns, one.communicator, one.number}; });
  Communicators communicators;
  absl::flat_hash_map<uint32_t, std::vector<const Met*>> of_communicators;
  for (const Met& one : all) {
    of_communicators[one.communicator].push_back(&one);
    OfOne& own = communicators[one.communicator];
    own.ends_ns.push_back(one.end_ns);
    own.count += one.stands_for;
  }
  const int64_t to_ns = all.back().end_ns, from_ns = AllToldFrom(all, communicators);
  const Pause pause = FindPause(all, from_ns);
  for (auto& [communicator, own] : communicators) {
    for (const Met* one : of_communicators.at(communicator))
      if (one->end_ns >= from_ns) own.bytes += static_cast<double>(one->bytes) * static_cast<double>(one->stands_for);
    own.rest_ns = RestNs(own, from_ns, to_ns, pause);
  }
  const std::vector<uint32_t> longest = LongestResting(communicators);
  OfOne& rarest = communicators.at(longest.front());
  for (const uint32_t one : longest) {
    OfOne kind = MostFrequent(of_communicators.at(one), from_ns, to_ns);
    if (kNearly * static_cast<double>(kind.rest_ns) <= static_cast<double>(rarest.rest_ns)) continue;
    rarest = std::move(kind);
    break;
  }
  if (rarest.rest_ns == 0) return {.ends_ns = {from_ns}};
  return StepsEndedBy(rarest, from_ns);
}

}  // namespace lockstep::detect
