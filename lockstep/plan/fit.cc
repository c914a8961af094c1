#include "lockstep/plan/fit.h"

#include <algorithm>

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kMostDoublings = 10, kLeastSequence = 128;
constexpr size_t kNamed = 4;

bool Fits(const Workload& base, const Rates& rates) {
  const Cluster cluster{base, rates};
  return Search({&cluster, 1}, {.keep = 1}).fitting > 0;
}

// Of the machine of `base`, the fewest accelerators, by doubling, from so many on; 0: no number will do.
int FewestThatFit(Workload base, int least, const Rates& rates) {
  base.accelerators = least;
  for (int i = 0; i < kMostDoublings; ++i, base.accelerators *= 2)
    if (Fits(base, rates)) return base.accelerators;
  return 0;
}

// The kind of memory that needs most.
std::string Most(const MemoryUse& use) {
  const std::pair<const char*, double> kinds[] = {{"weights, gradients and optimizer", use.states},
                                                  {"activations", use.activations},
                                                  {"logits", use.logits},
                                                  {"the workspace", use.workspace},
                                                  {"driver and communication", use.context}};
  const auto most = std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second; });
  return fmt::format("{} are {:.1f} of it", most->first, most->second / kGiB);
}

}  // namespace

std::vector<Remedy> Remedies(const Workload& base, const Rates& rates, const Machines& machines) {
  std::vector<Remedy> all;
  const auto add = [&](const Machine& machine, int least) {
    Workload other = base;
    other.machine = machine;
    if (const int count = FewestThatFit(other, least, rates); count > 0)
      all.push_back({fmt::format("{} x {}", count, machine.name), count * machine.usd_per_hour});
  };
  add(base.machine, 2 * base.accelerators);
  for (const Machines::Named& named : machines.all())
    if (named.machine.memory > base.machine.memory) add(named.machine, base.accelerators);
  std::ranges::stable_sort(all, {},
                           [](const Remedy& one) { return std::pair(one.usd_per_hour == 0, one.usd_per_hour); });
  Workload shorter = base;
  while (shorter.sequence / 2 >= kLeastSequence) {
    shorter.sequence /= 2;
    if (!Fits(shorter, rates)) continue;
    all.insert(all.begin(), {fmt::format("--seq {}", shorter.sequence), 0});
    break;
  }
  return all;
}

std::string WhatWouldFit(const Workload& base, const Candidate& nearest, const Rates& rates, const Machines& machines) {
  std::string text = fmt::format("no layout fits the memory: the least is {:.1f} GiB of {:.1f} ({}); {}",
                                 nearest.memory.total() / kGiB, base.machine.memory / kGiB,
                                 LayoutText(nearest.workload), Most(nearest.memory));
  std::vector<Remedy> remedies = Remedies(base, rates, machines);
  if (remedies.empty()) return text + "; no number of known accelerators would do";
  text += "; what would fit, cheapest first: ";
  if (remedies.size() > kNamed) remedies.resize(kNamed);
  for (size_t i = 0; i < remedies.size(); ++i) {
    text += (i == 0 ? "" : ", ") + remedies[i].text;
    if (remedies[i].usd_per_hour > 0) text += fmt::format(" ({:.0f} USD/h)", remedies[i].usd_per_hour);
  }
  return text;
}

}  // namespace lockstep::plan
