#include "lockstep/detect/simulated_groups.h"

#include <algorithm>

#include "lockstep/base/number.h"

namespace lockstep::detect {
namespace {

absl::StatusOr<int> ParseMachine(const std::string& text, const std::string& fault, int machines) {
  const int machine = WholeNumber<int>(text).value_or(-1);
  if (machine < 0 || machine >= machines) {
    return InvalidArgument("a fault is a machine from 0 to {}, or a link between two, as in 4-9; found \"{}\"",
                           machines - 1, fault);
  }
  return machine;
}

bool Holds(const Machines& group, int machine) { return std::find(group.begin(), group.end(), machine) != group.end(); }

}  // namespace

absl::StatusOr<SimulatedFaults> ParseSimulatedFaults(const std::vector<std::string>& texts, int machines) {
  SimulatedFaults faults;
  for (const std::string& text : texts) {
    const size_t dash = text.find('-', 1);
    LS_ASSIGN_OR_RETURN(const int first, ParseMachine(text.substr(0, dash), text, machines));
    if (dash == std::string::npos) {
      faults.machines.push_back(first);
      continue;
    }
    LS_ASSIGN_OR_RETURN(const int second, ParseMachine(text.substr(dash + 1), text, machines));
    if (first == second) return InvalidArgument("a link is between two machines, found \"{}\"", text);
    faults.links.emplace_back(first, second);
  }
  return faults;
}

SimulatedGroups::SimulatedGroups(SimulatedFaults faults, const ReplayOdds& odds, Seconds per_run, uint64_t seed)
    : faults_(std::move(faults)), odds_(odds), per_run_(per_run), random_(seed) {}

int SimulatedGroups::FaultsIn(const Machines& group) const {
  int count = 0;
  for (const int machine : faults_.machines) count += Holds(group, machine);
  for (const auto& [a, b] : faults_.links) count += Holds(group, a) && Holds(group, b);
  return count;
}

// 53 bits, as the distributions of each library differ.
bool SimulatedGroups::Hits(double chance) { return static_cast<double>(random_() >> 11) * 0x1p-53 < chance; }

absl::StatusOr<std::vector<GroupOutcome>> SimulatedGroups::RunRound(const ReplayRound& round) {
  std::vector<GroupOutcome> outcomes;
  for (const Machines& group : round.groups) {
    const int faults = FaultsIn(group);
    GroupOutcome outcome;
    while (outcome.runs < round.rule.runs && outcome.failures < round.rule.failures) {
      bool failed = Hits(odds_.false_alarm);
      for (int i = 0; i < faults; ++i) failed |= Hits(odds_.reproduces);
      ++outcome.runs;
      outcome.failures += failed;
      outcome.took += per_run_;
    }
    if (outcome.failures > 0)
      outcome.evidence.push_back(fmt::format("{} of {} runs failed, in simulation", outcome.failures, outcome.runs));
    outcomes.push_back(std::move(outcome));
  }
  return outcomes;
}

}  // namespace lockstep::detect
