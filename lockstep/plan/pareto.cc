#include "lockstep/plan/pareto.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

double SecondsOf(const Candidate& one) { return one.step.total().value; }

}  // namespace

std::vector<Candidate> FrontOfAll(std::vector<Candidate> all) {
  const bool priced = std::ranges::all_of(all, [](const Candidate& one) { return Dollars(one) > 0; });
  const auto money = [&](const Candidate& one) {
    return priced ? Dollars(one) : one.workload.accelerators * SecondsOf(one);
  };
  // Whoever is beaten is so by one that stands before it: faster, or as fast and smaller, or both and cheaper.
  std::ranges::stable_sort(
      all, {}, [&](const Candidate& one) { return std::tuple(SecondsOf(one), one.memory.total(), money(one)); });
  std::vector<Candidate> front;
  for (Candidate& one : all) {
    const bool is_beaten = std::ranges::any_of(front, [&](const Candidate& other) {
      return other.memory.total() <= one.memory.total() && money(other) <= money(one);
    });
    if (!is_beaten) front.push_back(std::move(one));
  }
  return front;
}

}  // namespace lockstep::plan
