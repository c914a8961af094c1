#include "lockstep/plan/fit.h"

#include <algorithm>
#include <optional>

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kMostDoublings = 10, kLeastSequence = 128;
constexpr size_t kNamed = 6;
// To try, alone and together.
constexpr Offload kOffloads[] = {
    {.optimizer = true}, {.activations = true}, {true, true}, {true, false, true}, {true, true, true}};

// The fastest that fits; none: null.
std::optional<Candidate> Fastest(const Workload& base, const Rates& rates, Offload offload) {
  const Cluster cluster{base, rates};
  const SearchResult result = Search({&cluster, 1}, {.keep = 1, .space = {.offloads = {offload}}});
  if (result.best.empty()) return std::nullopt;
  return result.best.front();
}
bool Fits(const Workload& base, const Rates& rates) { return Fastest(base, rates, {}).has_value(); }

void AddOffloads(const Workload& base, const Rates& rates, std::vector<Remedy>& all) {
  std::vector<std::pair<double, Remedy>> found;
  for (const Offload offload : kOffloads) {
    if (!CheckOffload(base, offload).ok()) continue;
    const std::optional<Candidate> one = Fastest(base, rates, offload);
    if (!one) continue;
    const double seconds = one->step.total().value;
    found.push_back({seconds, {fmt::format("--offload {} ({:.3g} s a step)", OffloadText(offload), seconds), 0}});
  }
  std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
  for (auto& [seconds, remedy] : found) all.push_back(std::move(remedy));
}

void AddShorter(Workload base, const Rates& rates, std::vector<Remedy>& all) {
  while (base.sequence / 2 >= kLeastSequence) {
    base.sequence /= 2;
    if (Fits(base, rates)) return all.push_back({fmt::format("--seq {}", base.sequence), 0});
  }
}

// The more is frozen, the less it needs.
void AddFrozen(Workload base, const Rates& rates, std::vector<Remedy>& all) {
  if (base.training == Training::kLora || base.layers < 2) return;
  base.frozen = {base.layers - 1, true};
  if (!Fits(base, rates)) return;
  int too_few = 0, enough = base.layers - 1;
  while (enough - too_few > 1) {
    base.frozen.layers = (too_few + enough) / 2;
    (Fits(base, rates) ? enough : too_few) = base.frozen.layers;
  }
  all.push_back({fmt::format("--freeze embedding,layers:{}", enough), 0});
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
  std::vector<Remedy> all, clusters;
  AddOffloads(base, rates, all);
  AddShorter(base, rates, all);
  AddFrozen(base, rates, all);
  const auto add = [&](const Machine& machine, int least) {
    Workload other = base;
    other.machine = machine;
    if (const int count = FewestThatFit(other, least, rates); count > 0)
      clusters.push_back({fmt::format("{} x {}", count, machine.name), count * machine.usd_per_hour});
  };
  add(base.machine, 2 * base.accelerators);
  for (const Machines::Named& named : machines.all())
    if (named.machine.memory > base.machine.memory) add(named.machine, base.accelerators);
  std::ranges::stable_sort(clusters, {},
                           [](const Remedy& one) { return std::pair(one.usd_per_hour == 0, one.usd_per_hour); });
  all.insert(all.end(), clusters.begin(), clusters.end());
  return all;
}

std::string WhatWouldFit(const Workload& base, const Candidate& nearest, const Rates& rates, const Machines& machines) {
  std::string text = fmt::format("no layout fits the memory: the least is {:.1f} GiB of {:.1f} ({}); {}",
                                 nearest.memory.total() / kGiB, base.machine.memory / kGiB,
                                 LayoutText(nearest.workload), Most(nearest.memory));
  if (nearest.memory.host > 0)
    text += fmt::format(", beside {:.1f} GiB of the host's {:.1f}", nearest.memory.host / kGiB,
                        base.machine.host_memory / kGiB);
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
