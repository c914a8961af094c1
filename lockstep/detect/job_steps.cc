#include "lockstep/detect/job_steps.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr double kNearly = 0.8;  // steps differ

struct OfOne {  // communicator
  std::vector<int64_t> ends_ns;
  double bytes = 0;
  int64_t count = 0;
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

// What lies between its collectives from one moment to another, half of that time in stretches at least so long. What
// lies before the first and after the last is a part of one.
int64_t RestNs(const OfOne& one, int64_t from_ns, int64_t to_ns, const Pause& pause) {
  std::vector<int64_t> rests;
  int64_t before_ns = from_ns;
  for (const int64_t end_ns : one.ends_ns)
    if (end_ns > from_ns) rests.push_back(pause.Without(std::exchange(before_ns, end_ns), end_ns));
  if (rests.empty()) return 0;  // it is over, or it is long ago
  rests.push_back(pause.Without(before_ns, to_ns));
  return MiddleOfSum(std::move(rests));
}

// Of what comes rarely older ones are told live (trace::Thin): all are since one that comes often is.
int64_t AllToldFrom(const std::vector<Met>& all, const absl::flat_hash_map<uint32_t, OfOne>& of_communicators) {
  constexpr int64_t kRare = 16;
  const auto often =
      std::ranges::find_if(all, [&](const Met& one) { return of_communicators.at(one.communicator).count > kRare; });
  return (often == all.end() ? all.begin() : often)->end_ns;
}

}  // namespace

JobSteps FindJobSteps(std::vector<Met> all) {
  if (all.empty()) return {};
  std::ranges::sort(all, {}, [](const Met& one) { return std::pair{one.end_ns, one.communicator}; });
  absl::flat_hash_map<uint32_t, OfOne> of_communicators;
  for (const Met& one : all) of_communicators[one.communicator].count += one.stands_for;
  const int64_t to_ns = all.back().end_ns, from_ns = AllToldFrom(all, of_communicators);
  double most_bytes = 0;
  for (const Met& one : all) {
    OfOne& own = of_communicators[one.communicator];
    own.ends_ns.push_back(one.end_ns);
    if (one.end_ns >= from_ns) most_bytes = std::max(most_bytes, own.bytes += one.bytes);
  }
  const Pause pause = FindPause(all, from_ns);
  constexpr double kNextToNothing = 0.001;          // of what the one carries that carries most
  std::vector<std::pair<int64_t, uint32_t>> rests;  // and communicators
  for (const auto& [communicator, own] : of_communicators)
    if (own.bytes >= kNextToNothing * most_bytes) rests.emplace_back(RestNs(own, from_ns, to_ns, pause), communicator);
  // Of those that rest nearly as long the rarest: it ends steps at the same place in each.
  const auto longest_ns = static_cast<double>(std::ranges::max(rests).first);
  std::erase_if(rests, [&](const auto& one) { return static_cast<double>(one.first) < kNearly * longest_ns; });
  const auto [usual_ns, rarest] = std::ranges::min(
      rests, {}, [&](const auto& one) { return std::pair{of_communicators.at(one.second).count, one.second}; });
  JobSteps steps;
  steps.usual_ns = usual_ns;
  if (steps.usual_ns == 0) return {.ends_ns = {from_ns}};
  const std::vector<int64_t>& ends_ns = of_communicators.at(rarest).ends_ns;
  steps.ends_ns.push_back(std::min(from_ns, ends_ns.front()));
  for (const int64_t end_ns : ends_ns)
    if (static_cast<double>(end_ns - steps.ends_ns.back()) >= kNearly * static_cast<double>(steps.usual_ns))
      steps.ends_ns.push_back(end_ns);
  return steps;
}

}  // namespace lockstep::detect
