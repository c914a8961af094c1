// LOCKSTEP_SEEDS=N tries so many; all tests run 10,000, the fast ones 1,000. What fails says how to replay it:
// LOCKSTEP_SEED=N, with LOCKSTEP_NODES, LOCKSTEP_RANKS (per node) and LOCKSTEP_MUTANT if they were others, and
// --gtest_filter=Simulation.Replay. Two builds that behave alike print the same with LOCKSTEP_DIGEST=N and
// --gtest_filter=Simulation.Digest.
#include "lockstep/control/simulation.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "lockstep/base/log.h"
#include "lockstep/control/machine.h"

namespace lockstep::control {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t fallback) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}
int NumberFromEnvironment(const char* name, int fallback) {
  return static_cast<int>(FromEnvironment(name, static_cast<uint64_t>(fallback)));
}

SimulationPlan PlanOf(uint64_t seed, Mutant mutant = Mutant::kNone) {
  SimulationPlan plan{.seed = seed, .mutant = mutant};
  plan.nodes = 1 + static_cast<int>(seed % 5);
  plan.ranks_per_node = 1 + static_cast<int>(seed / 5 % 3);
  return plan;
}

SimulationPlan ElasticPlanOf(uint64_t seed, Mutant mutant = Mutant::kNone) {
  SimulationPlan plan = PlanOf(seed, mutant);
  plan.elastic = true;
  return plan;
}

std::string ReplayCommand(const SimulationPlan& plan) {
  const SimulationPlan usual = PlanOf(plan.seed);
  std::string command = fmt::format("LOCKSTEP_SEED={} ", plan.seed);
  if (plan.nodes != usual.nodes) command += fmt::format("LOCKSTEP_NODES={} ", plan.nodes);
  if (plan.ranks_per_node != usual.ranks_per_node) command += fmt::format("LOCKSTEP_RANKS={} ", plan.ranks_per_node);
  if (plan.elastic) command += "LOCKSTEP_ELASTIC=1 ";
  if (plan.agents_lost) command += "LOCKSTEP_AGENTS_LOST=1 ";
  if (plan.mutant != usual.mutant) command += fmt::format("LOCKSTEP_MUTANT={} ", static_cast<int>(plan.mutant));
  return command + "build/release/bin/control_simulation_test --gtest_filter=Simulation.Replay";
}

SimulationResult Checked(const SimulationPlan& plan) {
  SimulationResult result = Simulate(plan);
  EXPECT_EQ(result.broken, "") << "replay it with: " << ReplayCommand(plan);
  return result;
}

// A full disk is said once by each coordinator.
const bool kQuiet = (SetLogLevel(LogLevel::kError), true);

// All that docs/models/control.md has.
struct Declared {
  const char* from;
  std::initializer_list<const char*> to;
};
const Declared kDeclared[] = {
    {"none", {"spawning", "loading"}},
    {"loading", {"spawning", "starting", "stopping", "finishing"}},
    {"spawning", {"starting", "running", "confirming", "stopping", "finishing", "finished"}},
    {"starting", {"running", "confirming", "stopping", "finishing", "finished"}},
    {"running", {"confirming", "stopping", "finishing", "finished"}},
    {"confirming", {"starting", "running", "stopping", "finishing", "finished"}},
    {"stopping", {"choosing", "probing", "finishing"}},
    {"probing", {"choosing", "stopping", "finishing", "finished"}},
    {"choosing", {"spawning", "stopping", "finishing", "finished"}},
    {"finishing", {"finished"}},
};

const char* const kWorldChanges[] = {"smaller", "larger", "not larger after all", "not to be gone on with"};

class Coverage {
 public:
  void Add(const SimulationResult& result) {
    for (const auto& [mode, count] : result.modes) modes_[mode] += count;
    for (const auto& [transition, count] : result.transitions) transitions_[transition] += count;
  }

  // Modes that were never reached, and transitions that are not declared.
  std::string Wrong() const {
    std::string wrong;
    for (int mode = 0; mode <= static_cast<int>(Mode::kProbing); ++mode) {
      const char* name = ModeName(static_cast<Mode>(mode));
      if (!modes_.contains(name)) wrong += fmt::format("mode {} was never reached; ", name);
    }
    for (const auto& [transition, count] : transitions_)
      if (!Transitions().contains(transition)) wrong += fmt::format("{} is not declared; ", transition);
    return wrong;
  }

  void Print() const {
    fmt::print("modes, and how often they were reached:\n");
    for (const auto& [mode, count] : modes_) fmt::print("  {:6} {}\n", count, mode);
    fmt::print("{} of {} transitions:\n", transitions_.size(), Transitions().size());
    for (const auto& [transition, count] : transitions_) fmt::print("  {:6} {}\n", count, transition);
    for (const std::string& transition : Transitions())
      if (!transitions_.contains(transition)) fmt::print("   never {}\n", transition);
  }

 private:
  static std::set<std::string> Transitions() {
    std::set<std::string> all;
    for (const Declared& declared : kDeclared)
      for (const char* to : declared.to) all.insert(fmt::format("{} -> {}", declared.from, to));
    return all;
  }

  std::map<std::string, int> modes_, transitions_;
};

TEST(Simulation, EveryPromiseHoldsInEverySchedule) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000);
  Coverage coverage;
  int restarts = 0, faults = 0, replays = 0, replay_evictions = 0, unseen = 0, after_all = 0;
  double virtual_s = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const SimulationResult result = Checked(PlanOf(seed));
    coverage.Add(result);
    restarts += result.restarts;
    faults += result.faults;
    replays += result.replays;
    replay_evictions += result.replay_evictions;
    unseen += result.unseen;
    after_all += result.after_all;
    virtual_s += result.virtual_s;
  }
  fmt::print("{} faults, {} restarts, {} replays, {} evictions by their word, {:.0f} virtual seconds\n", faults,
             restarts, replays, replay_evictions, virtual_s);
  fmt::print("{} loops began by time alone, of which {} told steps after all\n", unseen, after_all);
  coverage.Print();
  EXPECT_TRUE(seeds < 1000 || coverage.Wrong().empty()) << coverage.Wrong();
  EXPECT_TRUE(seeds < 1000 || replay_evictions > 0);
  EXPECT_TRUE(seeds < 1000 || (after_all > 0 && unseen > after_all));
}

// The world becomes smaller and larger, by itself and in the midst of whatever else breaks.
TEST(Simulation, EveryPromiseHoldsInWorldsThatChange) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000);
  Coverage coverage;
  std::map<std::string, int> worlds;
  int restarts = 0;
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const SimulationResult result = Checked(ElasticPlanOf(seed));
    coverage.Add(result);
    restarts += result.restarts;
    for (const auto& [change, count] : result.worlds) worlds[change] += count;
  }
  fmt::print("{} restarts\n", restarts);
  for (const auto& [change, count] : worlds) fmt::print("  {:6} {}\n", count, change);
  coverage.Print();
  EXPECT_TRUE(seeds < 10000 || coverage.Wrong().empty()) << coverage.Wrong();
  EXPECT_TRUE(seeds < 10000 || worlds.size() == std::size(kWorldChanges)) << "some way to change was never gone";
}

// Agents are away, also those whose ranks train on: the only standby is for the node whose ranks have ended.
TEST(Simulation, EveryPromiseHoldsWhereSeveralAgentsAreLost) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000) / 10;  // each is ten times as long
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    SimulationPlan plan = PlanOf(seed);
    plan.nodes = 3 + static_cast<int>(seed % 3);
    plan.agents_lost = true;
    const SimulationResult result = Checked(plan);
    EXPECT_GE(result.restarts, 1) << ReplayCommand(plan);
  }
}

// Tells what happens with one seed.
TEST(Simulation, Replay) {
  const uint64_t seed = FromEnvironment("LOCKSTEP_SEED", 0);
  if (seed == 0) GTEST_SKIP() << "LOCKSTEP_SEED says which";
  SimulationPlan plan = PlanOf(seed, static_cast<Mutant>(NumberFromEnvironment("LOCKSTEP_MUTANT", 0)));
  plan.nodes = NumberFromEnvironment("LOCKSTEP_NODES", plan.nodes);
  plan.ranks_per_node = NumberFromEnvironment("LOCKSTEP_RANKS", plan.ranks_per_node);
  plan.elastic = NumberFromEnvironment("LOCKSTEP_ELASTIC", 0) != 0;
  plan.agents_lost = NumberFromEnvironment("LOCKSTEP_AGENTS_LOST", 0) != 0;
  plan.story = true;
  const SimulationResult result = Checked(plan);
  for (const std::string& line : result.story) fmt::print("{}\n", line);
}

// FNV-1a, 64 bits.
class Digest {
 public:
  void Add(std::string_view text) {
    for (const char letter : text) Take(static_cast<unsigned char>(letter));
    Take(0);
  }
  void Add(const SimulationResult& result) {
    Add(fmt::format("{} {} {} {} {} {}", result.broken, result.restarts, result.faults, result.replays,
                    result.replay_evictions, result.virtual_s));
    for (const std::string& line : result.story) Add(line);
    for (const auto* counts : {&result.modes, &result.transitions, &result.worlds})
      for (const auto& [name, count] : *counts) Add(fmt::format("{} {}", name, count));
  }
  uint64_t value() const { return value_; }

 private:
  void Take(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }
  uint64_t value_ = 0xcbf29ce484222325ULL;
};

// One number for all that happens, as Replay tells it, in so many schedules of each kind, and with each mutant in a
// hundredth of them.
TEST(Simulation, Digest) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_DIGEST", 0);
  if (seeds == 0) GTEST_SKIP() << "LOCKSTEP_DIGEST says of how many schedules";
  for (const bool elastic : {false, true}) {
    Digest usual, mutants;
    const auto add = [&](Digest& digest, uint64_t seed, int mutant) {
      SimulationPlan plan = PlanOf(seed, static_cast<Mutant>(mutant));
      plan.elastic = elastic;
      plan.story = true;
      digest.Add(Simulate(plan));
    };
    for (uint64_t seed = 1; seed <= seeds; ++seed) add(usual, seed, 0);
    for (uint64_t seed = 1; seed <= seeds / 100; ++seed)
      for (int mutant = 1; mutant <= kMutants; ++mutant) add(mutants, seed, mutant);
    fmt::print("{}: {:016x}, with mutants {:016x}\n", elastic ? "worlds that change" : "worlds that stay",
               usual.value(), mutants.value());
  }
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
    const bool elastic = GetParam() >= kFirstOfWorlds || mutant == Mutant::kCommitUnkept;  // more machines are lost
    const SimulationPlan plan = elastic ? ElasticPlanOf(seed, mutant) : PlanOf(seed, mutant);
    const SimulationResult result = Simulate(plan);
    if (result.broken.empty()) continue;
    fmt::print("{}: {}\n  {}\n", MutantName(mutant), result.broken, ReplayCommand(plan));
    return;
  }
  FAIL() << MutantName(mutant) << " was not noticed in 1000 schedules: the simulation is too weak";
}

INSTANTIATE_TEST_SUITE_P(Simulation, Mutants, testing::Range(1, kMutants + 1));

// Some of so many are always late: the news of a commit reaches them steps after the others.
TEST(Simulation, ManyAgents) {
  const uint64_t seeds = FromEnvironment("LOCKSTEP_SEEDS", 1000) / 100;  // sanitizers are slow
  for (uint64_t seed = 1; seed <= seeds; ++seed) Checked({.seed = seed, .nodes = 128, .ranks_per_node = 1});
}

TEST(Simulation, AThousandAgents) {
  if (FromEnvironment("LOCKSTEP_SEEDS", 1000) < 1000) GTEST_SKIP() << "takes minutes under a sanitizer";
  Checked({.seed = 16, .nodes = 1024, .ranks_per_node = 1});
}

// One is cut off, the network of another fails, ranks crash, the job is restarted, a machine says that it is broken.
TEST(Simulation, TenThousandAgents) {
  if (FromEnvironment("LOCKSTEP_SEEDS", 1000) < 10'000) GTEST_SKIP() << "takes half a minute: among the long tests";
  const SimulationResult result = Checked({.seed = 1, .nodes = 10'000, .ranks_per_node = 1});
  EXPECT_EQ(result.restarts, 1);
  EXPECT_EQ(result.transitions.count("finishing -> finished"), 1U);
}

}  // namespace
}  // namespace lockstep::control
