// By enumeration: every single fault on every grid up to 64 machines, every pair up to 36; links; and, drawn by chance,
// faults that reproduce only sometimes.
#include "lockstep/detect/group_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lockstep/detect/replay_report.h"
#include "lockstep/detect/simulated_groups.h"

namespace lockstep::detect {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ReplayGrid Grid(int machines, int unit = 1, std::optional<int> pipelines = std::nullopt) {
  const auto grid = ChooseReplayGrid(machines, unit, pipelines);
  EXPECT_TRUE(grid.ok()) << grid.status();
  return *grid;
}

GroupTestResult Find(const ReplayGrid& grid, SimulatedFaults faults, ReplayOdds odds = {}, uint64_t seed = 1) {
  SimulatedGroups groups(std::move(faults), odds, Seconds{60}, seed);
  const auto result = FindBadMachines(grid, odds, {}, groups);
  EXPECT_TRUE(result.ok()) << result.status();
  return *result;
}

// Every grid of whole rows with m <= n, and the uneven ones of jobs without pipelines.
std::vector<ReplayGrid> Grids(int most) {
  std::vector<ReplayGrid> grids;
  for (int machines = 2; machines <= most; ++machines) {
    for (int unit = 1; unit <= machines / 2; ++unit) {
      for (int k = 1; k <= machines / unit; ++k) {
        const auto grid = ChooseReplayGrid(machines, unit, k);
        if (grid.ok()) grids.push_back(*grid);
      }
    }
  }
  return grids;
}

std::string Name(const ReplayGrid& grid) {
  return fmt::format("{} machines, {} rows of {}, pipelines of {}", grid.machines, grid.n, grid.m, grid.unit);
}

// ---- the grid ----

TEST(ReplayGrid, OfThePaper) {
  const ReplayGrid grid = Grid(24, 4);
  EXPECT_EQ(std::pair(4, 6), std::pair(grid.m, grid.n));
  EXPECT_THAT(grid.Rows()[3], ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(grid.Columns()[1], ElementsAre(1, 7, 13, 19));
}

// suspects = {x : x div m = row, x mod n = column}: one for m <= n, and m / n of them otherwise.
TEST(ReplayGrid, RowAndColumnShareOneMachineIfMIsAtMostN) {
  for (int machines = 1; machines <= 64; ++machines) {
    for (int m = 1; m <= machines; ++m) {
      const ReplayGrid grid{machines, 1, m, (machines + m - 1) / m};
      size_t most = 0;
      for (const Machines& row : grid.Rows()) {
        for (const Machines& column : grid.Columns()) {
          Machines shared;
          std::set_intersection(row.begin(), row.end(), column.begin(), column.end(), std::back_inserter(shared));
          most = std::max(most, shared.size());
        }
      }
      EXPECT_EQ(grid.unique(), most == 1) << Name(grid);
    }
  }
  EXPECT_FALSE((ReplayGrid{24, 1, 6, 4}.unique()));
}

TEST(ReplayGrid, GroupsPartitionTheMachinesIntoWholePipelines) {
  for (const ReplayGrid& grid : Grids(64)) {
    for (const auto& groups : {grid.Rows(), grid.Columns()}) {
      std::set<int> all;
      for (const Machines& group : groups) {
        EXPECT_EQ(0u, group.size() % static_cast<size_t>(grid.unit)) << Name(grid);
        EXPECT_LE(group.size(), static_cast<size_t>(grid.m)) << Name(grid);
        EXPECT_FALSE(group.empty()) << Name(grid);
        all.insert(group.begin(), group.end());
      }
      EXPECT_EQ(static_cast<size_t>(grid.machines), all.size()) << Name(grid);
    }
  }
}

TEST(ReplayGrid, ThePlanOfAnyJobIsTheWidestThatFits) {
  EXPECT_EQ(100, Grid(10000).m);
  EXPECT_EQ(2, Grid(4).m);
  EXPECT_EQ(2, Grid(6).m);
  EXPECT_EQ(8, Grid(96, 4).m);
  EXPECT_EQ(3, Grid(13).m);  // a prime: four rows of three and one of one
  EXPECT_EQ(5, Grid(13).n);
  EXPECT_EQ(4, Grid(28, 4).m);  // seven pipelines: only one in a group divides them
  EXPECT_FALSE(Grid(32, 8).unique());
}

TEST(ReplayGrid, SaysWhatIsWrong) {
  const auto error = [](int machines, int unit, std::optional<int> k) {
    return Message(ChooseReplayGrid(machines, unit, k).status());
  };
  EXPECT_THAT(error(10, 4, {}), HasSubstr("no whole pipelines of 4: leave 2 of them out, or add 2"));
  EXPECT_THAT(error(4, 4, {}), HasSubstr("form one group"));
  EXPECT_THAT(error(24, 2, 5), HasSubstr("no whole groups of 10 (5 pipelines of 2); possible: 1, 2"));
  EXPECT_THAT(error(24, 1, 6),
              HasSubstr("only 4, and with m > n two machines share both groups; possible: 1, 2, 3, 4"));
  EXPECT_THAT(error(32, 8, 1), HasSubstr("no number of pipelines does"));
  EXPECT_THAT(error(0, 1, {}), HasSubstr("found 0"));
  EXPECT_THAT(error(4, 0, {}), HasSubstr("at least 1 machine, found 0"));
  EXPECT_THAT(error(4, 1, 0), HasSubstr("at least 1 pipeline, found 0"));
}

// ---- faults that always reproduce ----

TEST(GroupTesting, EverySingleFaultIsNamedInTwoRounds) {
  int cases = 0;
  for (const ReplayGrid& grid : Grids(64)) {
    for (int bad = 0; bad < grid.machines; ++bad, ++cases) {
      const GroupTestResult found = Find(grid, {{bad}, {}});
      ASSERT_THAT(found.verdict.bad, ElementsAre(bad)) << Name(grid);
      ASSERT_THAT(found.verdict.evict, ElementsAre(bad)) << Name(grid);
      ASSERT_TRUE(found.verdict.certain) << Name(grid) << " " << found.verdict.confidence;
      ASSERT_EQ(2u, found.rounds.size()) << Name(grid);
    }
  }
  EXPECT_GT(cases, 5000);
}

TEST(GroupTesting, EveryPairIsNamedInAtMostThreeRounds) {
  int cases = 0;
  for (const ReplayGrid& grid : Grids(36)) {
    for (int a = 0; a < grid.machines; ++a) {
      for (int b = a + 1; b < grid.machines; ++b, ++cases) {
        const GroupTestResult found = Find(grid, {{a, b}, {}});
        ASSERT_THAT(found.verdict.bad, ElementsAre(a, b)) << Name(grid);
        // Of two, both: that may be the script.
        ASSERT_EQ(found.verdict.evict, (grid.machines > 2 ? Machines{a, b} : Machines{})) << Name(grid);
        ASSERT_EQ(grid.machines > 2, found.verdict.certain) << Name(grid) << " " << found.verdict.confidence;
        ASSERT_LE(found.rounds.size(), 3u) << Name(grid);
      }
    }
  }
  EXPECT_GT(cases, 10000);
}

TEST(GroupTesting, OfAnyFewFaultsNoHealthyMachineIsNamedForCertain) {
  std::mt19937_64 random(1);
  for (const int machines : {9, 16, 25, 36, 60}) {
    for (int trial = 0; trial < 40; ++trial) {
      std::set<int> bad;
      while (bad.size() < 3 + static_cast<size_t>(trial % 3))
        bad.insert(static_cast<int>(random() % static_cast<unsigned>(machines)));
      const Machines expected(bad.begin(), bad.end());
      const GroupTestResult found = Find(Grid(machines), {expected, {}});
      EXPECT_EQ(expected, found.verdict.bad) << machines;
      EXPECT_TRUE(found.verdict.certain) << machines << " " << found.verdict.confidence;
      EXPECT_LE(found.rounds.size(), 4u) << machines;
    }
  }
}

TEST(GroupTesting, WhereRowAndColumnShareMoreAThirdRoundTellsThemApart) {
  const GroupTestResult found = Find(Grid(32, 8), {{13}, {}});
  EXPECT_THAT(found.verdict.bad, ElementsAre(13));
  EXPECT_TRUE(found.verdict.certain);
  EXPECT_EQ(3u, found.rounds.size());
}

TEST(GroupTesting, WhoIsToBeConfirmedFailsOnceMoreInAGroupOfItsOwn) {
  const ReplayLimits confirm{.confirm = true};
  int cases = 0;
  for (const ReplayGrid& grid : Grids(25)) {
    for (int bad = 0; bad < grid.machines; ++bad, ++cases) {
      SimulatedGroups groups({{bad}, {}}, {}, Seconds{60}, 1);
      const auto found = FindBadMachines(grid, {}, confirm, groups);
      ASSERT_THAT(found->verdict.bad, ElementsAre(bad)) << Name(grid);
      ASSERT_TRUE(found->verdict.certain) << Name(grid);
      ASSERT_EQ(3u, found->rounds.size()) << Name(grid);
      ASSERT_EQ(1u, found->rounds[2].groups.size()) << Name(grid);
      ASSERT_THAT(found->rounds[2].groups[0], testing::Contains(bad)) << Name(grid);
    }
  }
  EXPECT_GT(cases, 500);
}

// Machine 1 fails in its row and 10 in its column, each once: that looks like 2, where these meet.
TEST(GroupTesting, TwoFaultsThatShowOnceLookLikeOneAndAreNotConfirmed) {
  for (const bool confirm : {false, true}) {
    GroupTesting testing(Grid(16), {}, {.confirm = confirm});
    const auto observe = [&](size_t faulty) {
      const ReplayRound round = testing.Next();
      std::vector<GroupOutcome> outcomes(round.groups.size(), {1, 0, Seconds{60}, {}});
      if (faulty < outcomes.size()) outcomes[faulty].failures = 1;
      testing.Observe(round, outcomes);
    };
    observe(0);
    observe(2);
    EXPECT_EQ(!confirm, testing.Done());
    EXPECT_EQ(!confirm, testing.Verdict().certain);
    EXPECT_THAT(testing.Verdict().bad, ElementsAre(2));
    while (!testing.Done()) observe(99);
    EXPECT_EQ(!confirm, testing.Verdict().certain);
  }
}

TEST(GroupTesting, WhatFailsOnAllMachinesMayBeTheScript) {
  for (const int machines : {2, 3, 4, 9}) {
    Machines all;
    for (int x = 0; x < machines; ++x) all.push_back(x);
    EXPECT_FALSE(Find(Grid(machines), {all, {}}).verdict.certain) << machines;
  }
}

TEST(GroupTesting, HealthyMachinesAreCleared) {
  const GroupTestResult found = Find(Grid(36), {});
  EXPECT_FALSE(found.verdict.reproduced);
  EXPECT_FALSE(found.verdict.certain);
  EXPECT_THAT(found.verdict.bad, IsEmpty());
  EXPECT_THAT(found.verdict.evict, IsEmpty());
  EXPECT_EQ(2u, found.rounds.size());
  EXPECT_DOUBLE_EQ(72, MachineMinutes(found));  // 36 machines, two rounds, a minute each
}

TEST(GroupTesting, NobodyIsEvictedWhereAllAreNamed) {
  const GroupTestResult found = Find(Grid(3), {{0, 1, 2}, {}});
  EXPECT_THAT(found.verdict.bad, ElementsAre(0, 1, 2));
  EXPECT_FALSE(found.verdict.certain);
  EXPECT_THAT(found.verdict.evict, IsEmpty());
  EXPECT_EQ(found.verdict.evict_confidence, 0);
}

// ---- links: only both ends together fail ----

TEST(GroupTesting, NobodyIsBlamedForALink) {
  for (const ReplayGrid& grid : {Grid(4), Grid(6), Grid(13), Grid(16), Grid(24, 4), Grid(9, 3), Grid(36)}) {
    for (int a = 0; a < grid.machines; ++a) {
      for (int b = a + 1; b < grid.machines; ++b) {
        const MachineVerdict verdict = Find(grid, {{}, {{a, b}}}).verdict;
        EXPECT_FALSE(verdict.certain) << Name(grid);
        EXPECT_THAT(verdict.bad, IsEmpty()) << Name(grid);
        const bool together = a / grid.m == b / grid.m || a % grid.n == b % grid.n;
        EXPECT_EQ(together, verdict.reproduced) << Name(grid);
        ASSERT_EQ(together ? 1u : 0u, verdict.apart.size()) << Name(grid);
        for (const Machines& group : verdict.apart) EXPECT_THAT(group, testing::IsSupersetOf({a, b})) << Name(grid);
      }
    }
  }
}

TEST(GroupTesting, ALinkBesideABadMachineBlamesNobodyElse) {
  const ReplayGrid grid = Grid(16);
  for (int bad = 0; bad < 16; ++bad) {
    for (int a = 0; a < 16; ++a) {
      for (int b = a + 1; b < 16; ++b) {
        const GroupTestResult found = Find(grid, {{bad}, {{a, b}}});
        for (const int named : found.verdict.certain ? found.verdict.bad : Machines{}) {
          EXPECT_TRUE(named == bad || named == a || named == b)
              << "bad " << bad << ", link " << a << "-" << b << ", named " << named;
        }
        EXPECT_THAT(found.verdict.bad, testing::Contains(bad)) << "link " << a << "-" << b;
      }
    }
  }
}

// ---- faults that reproduce only sometimes ----

TEST(ReplayOdds, MissIsOneMinusPToTheNumberOfRuns) {
  for (const double p : {0.3, 0.5, 0.9}) {
    for (const int runs : {1, 2, 7, 20}) {
      EXPECT_NEAR(std::pow(1 - p, runs), MissChance({runs, 1}, p), 1e-12);
      EXPECT_NEAR(1 - std::pow(1 - p, runs), AlarmChance({runs, 1}, p), 1e-12);
    }
  }
  EXPECT_NEAR(4 * 0.5 * 0.125 + 0.0625, MissChance({4, 2}, 0.5), 1e-12);
}

TEST(ReplayOdds, TheRuleHasTheFewestRunsThatHoldTheError) {
  EXPECT_EQ(1, RuleFor({}, 100)->runs);
  EXPECT_EQ(std::ceil(std::log(0.01 / 6) / std::log(0.5)), RuleFor({.reproduces = 0.5}, 100)->runs);
  const ReplayOdds noisy{.reproduces = 0.5, .false_alarm = 0.05, .error = 0.01};
  const auto rule = RuleFor(noisy, 6);
  ASSERT_TRUE(rule.ok());
  EXPECT_GT(rule->failures, 1);
  EXPECT_LE(6 * MissChance(*rule, 0.5), 0.01);
  EXPECT_LE(6 * AlarmChance(*rule, 0.05), 0.01);
  for (int failures = 1; failures < rule->runs; ++failures) {
    const ReplayRule fewer{rule->runs - 1, failures};
    EXPECT_TRUE(6 * MissChance(fewer, 0.5) > 0.01 || 6 * AlarmChance(fewer, 0.05) > 0.01) << failures;
  }
  EXPECT_THAT(Message(RuleFor({.reproduces = 0.001}, 4).status()), HasSubstr("more than 1000 runs"));
  // Of many runs the chance of none is too small for a number.
  const auto close = RuleFor({.reproduces = 0.999, .false_alarm = 0.95}, 12);
  ASSERT_TRUE(close.ok()) << close.status();
  EXPECT_GT(close->runs, 200);
  EXPECT_LE(1 - std::pow(0.999, close->runs), close->failures == close->runs ? 0.01 / 6 : 1)
      << "who must fail each time";
  EXPECT_TRUE(RuleFor({.false_alarm = 0.98}, 12).ok());
  EXPECT_FALSE(RuleFor({.reproduces = 0}, 4).ok());
  EXPECT_FALSE(RuleFor({.reproduces = 0.5, .false_alarm = 0.5}, 4).ok());
  EXPECT_FALSE(RuleFor({.error = 0}, 4).ok());
}

// The lower end of Wilson's interval at 95 %: a rate that is certainly above what was stated has this above it.
double WilsonLow(int hits, int trials) {
  const double z = 1.96, n = trials, rate = hits / n;
  return (rate + z * z / (2 * n) - z * std::sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))) / (1 + z * z / n);
}

struct Chances {
  ReplayOdds odds;
  int machines, faults;
};
class StatedError : public testing::TestWithParam<Chances> {};

TEST_P(StatedError, Holds) {
  const auto [odds, machines, faults] = GetParam();
  const ReplayGrid grid = Grid(machines);
  constexpr int kTrials = 400;
  std::mt19937_64 random(7);
  int wrong = 0;
  size_t most_rounds = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::set<int> bad;
    while (bad.size() < static_cast<size_t>(faults))
      bad.insert(static_cast<int>(random() % static_cast<unsigned>(machines)));
    const Machines expected(bad.begin(), bad.end());
    const GroupTestResult found = Find(grid, {expected, {}}, odds, random());
    wrong += found.verdict.bad != expected || !found.verdict.certain;
    most_rounds = std::max(most_rounds, found.rounds.size());
  }
  EXPECT_LE(WilsonLow(wrong, kTrials), odds.error) << wrong << " of " << kTrials;
  RecordProperty("wrong", wrong);
  RecordProperty("most_rounds", static_cast<int>(most_rounds));
}
INSTANTIATE_TEST_SUITE_P(Chances, StatedError,
                         testing::Values(Chances{{1, 0, 0.01}, 36, 1}, Chances{{0.9, 0, 0.01}, 36, 1},
                                         Chances{{0.7, 0, 0.01}, 36, 2}, Chances{{0.5, 0, 0.01}, 36, 1},
                                         Chances{{0.5, 0, 0.05}, 30, 2}, Chances{{0.3, 0, 0.01}, 36, 1},
                                         Chances{{0.3, 0, 0.05}, 16, 2}, Chances{{0.5, 0.02, 0.02}, 36, 1},
                                         Chances{{0.8, 0.05, 0.02}, 36, 2}));

TEST(GroupTesting, AContradictionIsAnsweredByProbability) {
  GroupTesting testing(Grid(16), {.reproduces = 0.5, .error = 0.3}, {});
  const auto observe = [&](size_t faulty) {
    const ReplayRound round = testing.Next();
    std::vector<GroupOutcome> outcomes(round.groups.size(), {round.rule.runs, 0, Seconds{60}, {}});
    if (faulty < outcomes.size()) outcomes[faulty] = {1, 1, Seconds{60}, {}};
    testing.Observe(round, outcomes);
  };
  observe(1);
  observe(99);  // the row failed and no column did
  ASSERT_FALSE(testing.Done());
  const MachineVerdict open = testing.Verdict();
  EXPECT_FALSE(open.certain);
  for (const SuspectMachine& suspect : open.suspects) {
    EXPECT_EQ(1, suspect.machine / 4);
    EXPECT_NEAR(open.suspects.front().chance, suspect.chance, 1e-9);  // nothing tells the four apart
  }
  EXPECT_EQ(4u, open.suspects.size());
  observe(2);  // each of them in a group of its own
  const MachineVerdict verdict = testing.Verdict();
  EXPECT_THAT(verdict.bad, ElementsAre(6));
  EXPECT_GT(verdict.suspects.front().chance, 0.9);
}

TEST(GroupTesting, TenThousandMachines) {
  const ReplayGrid grid = Grid(10000, 4);
  EXPECT_TRUE(grid.unique());
  EXPECT_THAT(Find(grid, {{4711}, {}}).verdict.bad, ElementsAre(4711));
  const GroupTestResult pair = Find(grid, {{17, 8888}, {}});
  EXPECT_THAT(pair.verdict.bad, ElementsAre(17, 8888));
  EXPECT_LE(pair.rounds.size(), 3u);
  const GroupTestResult rare = Find(grid, {{17, 8888}, {}}, {.reproduces = 0.3});
  EXPECT_THAT(rare.verdict.bad, ElementsAre(17, 8888));
  EXPECT_TRUE(rare.verdict.certain);
}

TEST(GroupTesting, TheSameOutcomesGiveTheSameVerdict) {
  const auto twice = [] {
    const GroupTestResult found = Find(Grid(36), {{3, 20}, {}}, {.reproduces = 0.4, .error = 0.2}, 5);
    return std::tuple(found.verdict.bad, found.verdict.confidence, found.rounds.size(), MachineMinutes(found));
  };
  EXPECT_EQ(twice(), twice());
}

// ---- the answer ----

std::vector<std::string> Names(const std::vector<incident::Suspect>& suspects) {
  std::vector<std::string> names;
  for (const incident::Suspect& suspect : suspects) names.push_back(suspect.name);
  return names;
}

TEST(ReplayFinding, NamesTheNodeOrLeavesTheLinkOpen) {
  const std::vector<std::string> names = {"a", "b", "c", "d"};
  const auto bad = ReplayFinding(Find(Grid(4), {{2}, {}}), incident::Syndrome::kCrash, names);
  ASSERT_TRUE(bad.has_value());
  EXPECT_TRUE(bad->certain);
  EXPECT_THAT(Names(bad->suspects), ElementsAre("c"));
  EXPECT_THAT(bad->ambiguous_with, IsEmpty());
  EXPECT_THAT(bad->evidence, ElementsAre(HasSubstr("round 1: nodes c, d failed 1 of 1 runs"),
                                         HasSubstr("round 2: nodes a, c failed")));
  const auto link = ReplayFinding(Find(Grid(4), {{}, {{2, 3}}}), incident::Syndrome::kCrash, names);
  ASSERT_TRUE(link.has_value());
  EXPECT_FALSE(link->certain);
  EXPECT_THAT(link->suspects, IsEmpty());
  EXPECT_THAT(Names(link->ambiguous_with), ElementsAre("c", "d"));
  EXPECT_THAT(link->probe, HasSubstr("halves"));
  EXPECT_FALSE(ReplayFinding(Find(Grid(4), {}), incident::Syndrome::kCrash, names).has_value());
}

TEST(SimulatedGroups, ReadsFaults) {
  const auto faults = ParseSimulatedFaults({"13", "4-9"}, 24);
  ASSERT_TRUE(faults.ok());
  EXPECT_THAT(faults->machines, ElementsAre(13));
  EXPECT_THAT(faults->links, ElementsAre(std::pair(4, 9)));
  for (const char* text : {"", "24", "-1", "4-", "4-4", "x", "1-2-3"})
    EXPECT_FALSE(ParseSimulatedFaults({text}, 24).ok()) << text;
}

}  // namespace
}  // namespace lockstep::detect
