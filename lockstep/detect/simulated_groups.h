// Groups of machines that replay a job in simulation: with bad machines and bad links between two, each of which makes
// a run of a group that holds it (both its ends) fail with chance p, and runs that fail with chance q for no reason.
// The same seed gives the same outcomes.
//
//   LS_ASSIGN_OR_RETURN(const SimulatedFaults faults, ParseSimulatedFaults({"13", "4-9"}, 24));
//   SimulatedGroups groups(faults, odds, Seconds{300}, 1);
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/detect/group_testing.h"

namespace lockstep::detect {

struct SimulatedFaults {
  Machines machines;
  std::vector<std::pair<int, int>> links;
};

// "13" is machine 13, "4-9" the link between 4 and 9.
absl::StatusOr<SimulatedFaults> ParseSimulatedFaults(const std::vector<std::string>& texts, int machines);

class SimulatedGroups final : public GroupRunner {
 public:
  SimulatedGroups(SimulatedFaults faults, const ReplayOdds& odds, Seconds per_run, uint64_t seed);
  absl::StatusOr<std::vector<GroupOutcome>> RunRound(const ReplayRound& round) override;

 private:
  int FaultsIn(const Machines& group) const;
  bool Hits(double chance);

  SimulatedFaults faults_;
  ReplayOdds odds_;
  Seconds per_run_;
  std::mt19937_64 random_;
};

}  // namespace lockstep::detect
