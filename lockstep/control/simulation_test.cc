// LOCKSTEP_SEED=N replays one seed, LOCKSTEP_SEEDS=N tries so many.
#include "lockstep/control/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/log.h"

namespace lockstep::control {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

SimulationPlan PlanOf(uint64_t seed, Mutant mutant = Mutant::kNone) {
  SimulationPlan plan{.seed = seed, .mutant = mutant};
  plan.nodes = 1 + static_cast<int>(seed % 5);
  plan.ranks_per_node = 1 + static_cast<int>(seed / 5 % 3);
  return plan;
}

// A full disk is said once by each coordinator.
const bool kQuiet = (SetLogLevel(LogLevel::kError), true);

TEST(Simulation, EveryPromiseHoldsInEverySchedule) {
  const uint64_t only = FromEnvironment("LOCKSTEP_SEED", 0), seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000);
  std::set<std::string> transitions;
  int restarts = 0, faults = 0;
  double virtual_s = 0;
  for (uint64_t seed = only ? only : 1; seed <= (only ? only : seeds); ++seed) {
    const SimulationResult result = Simulate(PlanOf(seed));
    EXPECT_EQ(result.broken, "") << "replay it with: LOCKSTEP_SEED=" << seed
                                 << " build/release/bin/control_simulation_test";
    transitions.insert(result.transitions.begin(), result.transitions.end());
    restarts += result.restarts;
    faults += result.faults;
    virtual_s += result.virtual_s;
  }
  fmt::print("{} faults, {} restarts, {:.0f} virtual seconds, {} transitions:\n", faults, restarts, virtual_s,
             transitions.size());
  for (const std::string& transition : transitions) fmt::print("  {}\n", transition);
}

TEST(Simulation, TheSameSeedGivesTheSameRun) {
  const SimulationResult once = Simulate(PlanOf(7)), again = Simulate(PlanOf(7));
  EXPECT_EQ(once.virtual_s, again.virtual_s);
  EXPECT_EQ(once.transitions, again.transitions);
}

class Mutants : public testing::TestWithParam<int> {};

TEST_P(Mutants, AreCaughtWithinAThousandSeeds) {
  const auto mutant = static_cast<Mutant>(GetParam());
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    const SimulationResult result = Simulate(PlanOf(seed, mutant));
    if (result.broken.empty()) continue;
    fmt::print("{}: seed {}: {}\n", MutantName(mutant), seed, result.broken);
    return;
  }
  FAIL() << MutantName(mutant) << " was not noticed in 1000 schedules: the simulation is too weak";
}

INSTANTIATE_TEST_SUITE_P(Simulation, Mutants, testing::Range(1, kMutants + 1));

// Some of so many are always late: the news of a commit reaches them steps after the others.
TEST(Simulation, ManyAgents) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000) / 100;  // sanitizers are slow
  for (uint64_t seed = 1; seed <= seeds; ++seed)
    EXPECT_EQ(Simulate({.seed = seed, .nodes = 128, .ranks_per_node = 1}).broken, "") << "seed " << seed;
}

TEST(Simulation, AThousandAgents) {
  if (FromEnvironment("LOCKSTEP_SEEDS", 1000) < 1000) GTEST_SKIP() << "takes minutes under a sanitizer";
  const SimulationResult result = Simulate({.seed = 11, .nodes = 1024, .ranks_per_node = 1});
  EXPECT_EQ(result.broken, "");
}

}  // namespace
}  // namespace lockstep::control
