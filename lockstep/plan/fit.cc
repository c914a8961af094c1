#include "lockstep/plan/fit.h"

#include <algorithm>
#include <optional>

namespace lockstep::plan {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kMostDoublings = 10, kLeastSequence = 128;
constexpr size_t kNamed = 6, kOffloadsNamed = 2;
// To try, alone and together.
constexpr Offload kOffloads[] = {
    {.optimizer = true}, {.activations = true}, {true, true}, {true, false, true}, {true, true, true}};

// Tries remedies by searches, until it is told to stop.
class Trial {
 public:
  Trial(const Workload& base, const Rates& rates, Stops stops) : base_(base), rates_(rates), stops_(std::move(stops)) {}

  // What goes to the host's memory, the fastest first.
  void AddOffloads(std::vector<Remedy>& all) const {
    std::vector<std::pair<double, Remedy>> found;
    for (const Offload offload : kOffloads) {
      if (!CheckOffload(base_, offload).ok()) continue;
      const std::optional<Candidate> one = Fastest(base_, offload);
      if (!one) continue;
      const double seconds = one->step.total().value;
      found.push_back({seconds, {fmt::format("--offload {} ({:.3g} s a step)", OffloadText(offload), seconds), 0}});
    }
    std::ranges::stable_sort(found, {}, [](const auto& one) { return one.first; });
    if (found.size() > kOffloadsNamed) found.resize(kOffloadsNamed);
    for (auto& [seconds, remedy] : found) all.push_back(std::move(remedy));
  }

  void AddShorter(std::vector<Remedy>& all) const {
    Workload shorter = base_;
    while (shorter.sequence / 2 >= kLeastSequence) {
      shorter.sequence /= 2;
      if (Fits(shorter)) return all.push_back({fmt::format("--seq {}", shorter.sequence), 0});
    }
  }

  // The more is frozen, the less it needs.
  void AddFrozen(std::vector<Remedy>& all) const {
    if (base_.training == Training::kLora || base_.layers < 2) return;
    Workload frozen = base_;
    frozen.frozen = {base_.layers - 1, !base_.tied_embeddings};
    if (!Fits(frozen)) return;
    int too_few = 0, enough = base_.layers - 1;
    while (enough - too_few > 1 && !Stopped()) {
      frozen.frozen.layers = (too_few + enough) / 2;
      (Fits(frozen) ? enough : too_few) = frozen.frozen.layers;
    }
    all.push_back({fmt::format("--freeze {}layers:{}", base_.tied_embeddings ? "" : "embedding,", enough), 0});
  }

  // The fewest accelerators of a machine, from so many on, by doubling and then by eighths; 0: no number will do.
  int FewestThatFit(const Machine& machine, int least) const {
    Workload other = base_;
    other.machine = machine;
    const auto fits = [&](int64_t count) {
      other.accelerators = static_cast<int>(count);
      return Fits(other);
    };
    int64_t count = least;
    for (int doublings = 0; !fits(count); count *= 2)
      if (++doublings == kMostDoublings || 2 * count > kMostAccelerators) return 0;
    if (count == least || count % 8 != 0) return static_cast<int>(count);
    for (const int eighths : {5, 6, 7})
      if (fits(count / 8 * eighths)) return static_cast<int>(count / 8 * eighths);
    return static_cast<int>(count);
  }
  bool Stopped() const { return stops_ && stops_(); }

 private:
  // None: null.
  std::optional<Candidate> Fastest(const Workload& work, Offload offload) const {
    if (Stopped()) return std::nullopt;
    const Cluster cluster{work, rates_};
    const SearchResult result = Search({&cluster, 1}, {.keep = 1, .space = {.offloads = {offload}}, .stops = stops_});
    if (result.best.empty()) return std::nullopt;
    return result.best.front();
  }
  bool Fits(const Workload& work) const { return Fastest(work, {}).has_value(); }

  const Workload& base_;
  const Rates& rates_;
  const Stops stops_;
};

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

std::string NeedsText(const Candidate& one) {
  const Machine& machine = one.workload.machine;
  std::string text = fmt::format("{:.1f} GiB of {:.1f} ({}); {}", one.memory.total() / kGiB, machine.memory / kGiB,
                                 LayoutText(one.workload), Most(one.memory));
  if (one.memory.host > 0)
    text += fmt::format(", beside {:.1f} GiB of the host's {:.1f}", one.memory.host / kGiB, machine.host_memory / kGiB);
  return text;
}

std::vector<Remedy> Remedies(const Workload& base, const Rates& rates, const Machines& machines, Stops stops) {
  const Trial trial(base, rates, std::move(stops));
  std::vector<Remedy> all, clusters;
  trial.AddOffloads(all);
  trial.AddShorter(all);
  trial.AddFrozen(all);
  const auto add = [&](const Machine& machine, int least) {
    if (const int count = trial.FewestThatFit(machine, least); count > 0)
      clusters.push_back({fmt::format("{} x {}", count, machine.name), count * machine.usd_per_hour});
  };
  add(base.machine, base.accelerators);
  for (const Machines::Named& named : machines.all())
    if (named.machine.memory > base.machine.memory && named.machine.Peak(base.precision) > 0)
      add(named.machine, base.accelerators);
  std::ranges::stable_sort(clusters, {},
                           [](const Remedy& one) { return std::pair(one.usd_per_hour == 0, one.usd_per_hour); });
  all.insert(all.end(), clusters.begin(), clusters.end());
  return all;
}

std::string WhatWouldFit(const Workload& base, const Candidate& nearest, const Rates& rates, const Machines& machines,
                         const Stops& stops) {
  std::string text = "no layout fits the memory: the least is " + NeedsText(nearest);
  std::vector<Remedy> remedies = Remedies(base, rates, machines, stops);
  const bool stopped = stops && stops();
  if (stopped) text += "; interrupted before all remedies were tried";
  if (remedies.empty() && stopped) return text;
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
