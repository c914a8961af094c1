#include "lockstep/detect/evictions.h"

#include <algorithm>

namespace lockstep::detect {
namespace {

// A set of machines, and which explanations lie within it.
class Within {
 public:
  explicit Within(const std::vector<Explanation>& list) : list_(list) {
    for (size_t i = 0; i < list.size(); ++i) {
      for (const int x : list[i].bad) named_in_[x].push_back(i);
      outside_.push_back(list[i].bad.size());
    }
  }

  void Add(int machine) {
    for (const size_t i : named_in_.at(machine)) --outside_[i];
  }
  void Remove(int machine) {
    for (const size_t i : named_in_.at(machine)) ++outside_[i];
  }
  // Summed anew, always in the order of the list: a sum that is kept would differ in its last bits by what came before.
  double Chance() const {
    double chance = 0;
    for (size_t i = 0; i < list_.size(); ++i) {
      if (outside_[i] == 0) chance += list_[i].chance;
    }
    return chance;
  }

 private:
  const std::vector<Explanation>& list_;
  std::map<int, std::vector<size_t>> named_in_;  // by machine
  std::vector<size_t> outside_;                  // by explanation: of its machines, how many are not in the set
};

}  // namespace

Evictions FindEvictions(const Explanations& explanations, const std::map<int, double>& chances, double confidence) {
  std::vector<std::pair<double, int>> order;
  for (const auto& [machine, chance] : chances) order.emplace_back(-chance, machine);
  std::sort(order.begin(), order.end());
  Within within(explanations.list);
  Evictions evictions;
  size_t added = 0;
  for (; added < order.size() && within.Chance() < confidence; ++added) within.Add(order[added].second);
  while (added > 0) {
    const int machine = order[--added].second;
    within.Remove(machine);
    if (within.Chance() >= confidence) continue;
    within.Add(machine);
    evictions.machines.push_back(machine);
  }
  std::sort(evictions.machines.begin(), evictions.machines.end());
  evictions.chance = within.Chance();
  return evictions;
}

}  // namespace lockstep::detect
