#include "lockstep/detect/job_steps.h"

#include <algorithm>

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

// What lies between its collectives from one moment to another, half of that time in stretches at least so long. What
// lies before the first and after the last is a part of one.
int64_t RestNs(const OfOne& one, int64_t from_ns, int64_t to_ns) {
  std::vector<int64_t> rests;
  int64_t before_ns = from_ns;
  for (const int64_t end_ns : one.ends_ns) {
    if (end_ns <= from_ns) continue;
    rests.push_back(end_ns - before_ns);
    before_ns = end_ns;
  }
  if (rests.empty()) return 0;  // it is over, or it is long ago
  rests.push_back(to_ns - before_ns);
  return MiddleOfSum(std::move(rests));
}

}  // namespace

JobSteps FindJobSteps(std::vector<Met> all) {
  if (all.empty()) return {};
  std::ranges::sort(all, {}, [](const Met& one) { return std::pair{one.end_ns, one.communicator}; });
  absl::flat_hash_map<uint32_t, OfOne> of_communicators;
  for (const Met& one : all) of_communicators[one.communicator].count += one.stands_for;
  // Of what comes rarely older ones are told: all are since that which comes most often is.
  const auto often = [](const auto& a, const auto& b) {
    return std::pair{a.second.count, b.first} < std::pair{b.second.count, a.first};
  };
  const uint32_t busiest = std::max_element(of_communicators.begin(), of_communicators.end(), often)->first;
  const int64_t to_ns = all.back().end_ns;
  const int64_t from_ns =
      std::ranges::find_if(all, [&](const Met& one) { return one.communicator == busiest; })->end_ns;
  double most_bytes = 0;
  for (const Met& one : all) {
    OfOne& own = of_communicators[one.communicator];
    own.ends_ns.push_back(one.end_ns);
    if (one.end_ns >= from_ns) most_bytes = std::max(most_bytes, own.bytes += one.bytes);
  }
  constexpr double kNextToNothing = 0.001;  // of what the one carries that carries most
  JobSteps steps;
  uint32_t longest = 0;
  for (const auto& [communicator, own] : of_communicators) {
    if (own.bytes < kNextToNothing * most_bytes) continue;
    const int64_t rest_ns = RestNs(own, from_ns, to_ns);
    if (rest_ns < steps.usual_ns || (rest_ns == steps.usual_ns && communicator > longest)) continue;
    steps.usual_ns = rest_ns;
    longest = communicator;
  }
  if (steps.usual_ns == 0) return {};
  const std::vector<int64_t>& ends_ns = of_communicators[longest].ends_ns;
  steps.ends_ns.push_back(std::min(from_ns, ends_ns.front()));
  for (const int64_t end_ns : ends_ns)
    if (static_cast<double>(end_ns - steps.ends_ns.back()) >= kNearly * static_cast<double>(steps.usual_ns))
      steps.ends_ns.push_back(end_ns);
  return steps;
}

}  // namespace lockstep::detect
