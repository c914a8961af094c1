// Worlds that become smaller, and larger again, and where they begin.
#include <gmock/gmock.h>
#include <signal.h>

#include "lockstep/cluster/layout.h"
#include "lockstep/control/fleet.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nodes a, b and c of two ranks each; epoch 1 has finished step 10 at 12 s.
Scenario ThreeNodes(int least, int most, const std::string& layout = "", bool can_ask = false) {
  JobSpec spec;
  spec.least_nodes = least;
  spec.most_nodes = most;
  spec.layout = layout;
  spec.can_ask = can_ask;
  return OfNodes({"a", "b", "c"}, std::move(spec));
}

std::vector<std::string> Names(const Scenario& job) {
  std::vector<std::string> names;
  for (const NodeSpec& node : job.state.spec.nodes) names.push_back(node.name);
  return names;
}

const StandbyCame kStandby{{"s", 2, "s's"}};
const CheckpointId kPoint{EpochId(1), 12};

TEST(World, GoesOnWithoutALostNode) {
  Scenario job = ThreeNodes(2, 3);
  EXPECT_THAT(LoseB(job), HasSubstr("vacate 1"));
  EXPECT_THAT(Names(job), ElementsAre("a", "b", "c")) << "the epoch that is being killed has its world";
  EXPECT_THAT(job.Hear(21.3, EpochStopped{EpochId(1)}), HasSubstr("resize to 2, choose for 2"));
  EXPECT_THAT(Names(job), ElementsAre("a", "c"));
  EXPECT_EQ(job.state.spec.ranks, 4);
  EXPECT_THAT(job.Hear(21.4, RestoreChosen{EpochId(2), CheckpointId{EpochId(1), 12}, {}}), HasSubstr("spawn 2"));
  EXPECT_EQ(job.state.evictions.front().standby, "");
  EXPECT_TRUE(Validate(job.state).ok());
}

TEST(World, IsNeverSmallerThanTheLeast) {
  for (const auto& [least, most] : {std::pair(3, 4), std::pair(0, 0)}) {
    Scenario job = ThreeNodes(least, most);
    EXPECT_THAT(LoseB(job), Not(HasSubstr("vacate")));
    job.Hear(90, AgentGone{1, "gone"});
    EXPECT_THAT(job.Hear(90.1, EpochStopped{EpochId(1)}), HasSubstr("finish 3"));
    EXPECT_EQ(job.state.exit_code, kExitLost);
    EXPECT_THAT(Names(job), ElementsAre("a", "b", "c"));
  }
}

TEST(World, AStandbyIsPreferred) {
  Scenario job = ThreeNodes(2, 3);
  job.Hear(13, kStandby);
  EXPECT_THAT(LoseB(job), HasSubstr("seat 1"));
  job.Hear(21.3, EpochStopped{EpochId(1)});
  EXPECT_THAT(Names(job), ElementsAre("a", "s", "c"));
}

Alerted Broken(double since, bool cleared = false) {
  return {-1, "gpu_xid", AlertClass::kMachine, "", "", At(since), cleared, "s's"};
}

TEST(World, NeedsNoStandbyThatSaysItIsBroken) {
  Scenario job = ThreeNodes(2, 3);
  job.Hear(13, kStandby);
  job.Hear(14, Broken(14));
  EXPECT_THAT(LoseB(job), HasSubstr("vacate 1"));
  EXPECT_THAT(job.Hear(21.25, Broken(14, true)), HasSubstr("seat 1")) << "it is not, and comes in time";
}

TEST(World, AStandbyThatComesInTimeHasThePlaceAfterAll) {
  Scenario job = ThreeNodes(2, 3);
  LoseB(job);
  EXPECT_THAT(job.Hear(21.25, kStandby), HasSubstr("seat 1"));
  EXPECT_THAT(job.Hear(21.3, EpochStopped{EpochId(1)}), Not(HasSubstr("resize"))) << "as many nodes, in the old order";
  EXPECT_THAT(Names(job), ElementsAre("a", "s", "c"));
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions[0].standby, "s");
}

TEST(World, AMachineThatCanBeHadIsAwaitedFirst) {
  Scenario job = ThreeNodes(2, 3, "", true);
  EXPECT_THAT(LoseB(job), Not(HasSubstr("vacate")));
  EXPECT_TRUE(job.state.awaited.contains(1));
  job.Hear(100, AgentGone{1, "too early"});
  EXPECT_TRUE(job.state.vacated.empty());
  EXPECT_THAT(job.Hear(700, AgentGone{1, "nobody came"}), HasSubstr("vacate 1"));
  EXPECT_NE(job.state.mode, Mode::kFinishing);
}

TEST(World, KeepsTheModelParallelLayout) {
  const std::string pipeline = cluster::LayoutJson({.dp = 3, .pp = 2});
  Scenario fits = ThreeNodes(1, 3, pipeline);
  EXPECT_THAT(LoseB(fits), HasSubstr("vacate 1"));
  fits.Hear(21.3, EpochStopped{EpochId(1)});
  EXPECT_EQ(fits.state.spec.layout, cluster::LayoutJson({.dp = 2, .pp = 2}));
  Scenario does_not = ThreeNodes(1, 3, cluster::LayoutJson({.dp = 2, .pp = 3}));
  EXPECT_THAT(LoseB(does_not), Not(HasSubstr("vacate"))) << "four ranks have no three stages";
}

TEST(World, EndsWhereItsStateDoesNotFit) {
  Scenario job = ThreeNodes(2, 3);
  LoseB(job);
  job.Hear(21.3, EpochStopped{EpochId(1)});
  EXPECT_THAT(job.Hear(21.4, RestoreChosen{EpochId(2), {}, {}, "its ranks differ"}), HasSubstr("finish 3"));
  EXPECT_EQ(job.state.verdict, "its ranks differ");
}

TEST(World, ARunDoesNotBeginAfreshOverWhatItCannotTake) {
  JobSpec spec;
  spec.load_first = true;
  spec.first_epoch = EpochId(4);
  Scenario job(std::move(spec));
  EXPECT_THAT(job.Hear(2, RestoreChosen{EpochId(4), {}, {}, "it was written by 4 ranks"}), HasSubstr("kill 4"));
  EXPECT_EQ(job.state.exit_code, kExitFailed);
  EXPECT_EQ(job.state.verdict, "it was written by 4 ranks");
}

TEST(World, ShrinksAgainWhileItChooses) {
  Scenario job = ThreeNodes(1, 3);
  LoseB(job);
  job.Hear(21.3, EpochStopped{EpochId(1)});
  job.Hear(22, AgentLost{1, "c", "its connection was lost", At(22)});
  EXPECT_THAT(job.Hear(40, AgentGone{1, "gone"}), HasSubstr("vacate 1, announce"));
  EXPECT_THAT(Names(job), ElementsAre("a"));
  EXPECT_EQ(job.state.mode, Mode::kChoosing);
}

// Nodes a and c train in epoch 2; s stands by since 30 s.
Scenario Smaller() {
  Scenario job = ThreeNodes(2, 3);
  LoseB(job);
  job.Hear(21.3, EpochStopped{EpochId(1)});
  job.Hear(21.4, RestoreChosen{EpochId(2), CheckpointId{EpochId(1), 12}, {}});
  job.Hear(22, EpochSpawned{EpochId(2)});
  job.Hear(22, LoopBegan{EpochId(2), At(22), CheckpointId{EpochId(1), 12}});
  job.Hear(25, ProgressSeen{EpochId(2), Step(14, 25)});
  job.Hear(30, kStandby);
  return job;
}

TEST(World, GrowsByARestartOfItsOwnAfterAWhile) {
  Scenario job = Smaller();
  EXPECT_FALSE(IsGrowthDue(job.state, At(59)));
  EXPECT_TRUE(IsGrowthDue(job.state, At(60)));
  const int charged = job.state.restarts - job.state.free_retries;
  EXPECT_THAT(job.Hear(60, GrowthDue{EpochId(2)}), HasSubstr("kill 2"));
  EXPECT_THAT(job.Hear(60.1, EpochStopped{EpochId(2)}), HasSubstr("resize to 3, choose for 3"));
  EXPECT_THAT(Names(job), ElementsAre("a", "c", "s"));
  job.Hear(60.2, RestoreChosen{EpochId(3), CheckpointId{EpochId(2), 14}, {}});
  EXPECT_EQ(job.state.restarts - job.state.free_retries, charged) << "it is charged to nothing";
}

TEST(World, DoesNotGrowByAMachineThatSaysItIsBroken) {
  Scenario job = Smaller();
  job.Hear(31, Broken(31));
  EXPECT_FALSE(IsGrowthDue(job.state, At(70)));
  job.Hear(40, Broken(31, true));
  EXPECT_FALSE(IsGrowthDue(job.state, At(69)));
  EXPECT_TRUE(IsGrowthDue(job.state, At(70)));
  job.Hear(71, Broken(71));
  job.Hear(72, Killed(2, 0, SIGKILL));
  job.Hear(73, EpochStopped{EpochId(2)});
  EXPECT_THAT(Names(job), ElementsAre("a", "c")) << "nor by a restart for another reason";
}

TEST(World, GrowsNotMoreOftenThanStated) {
  Scenario job = Smaller();
  job.state.grown = At(25);
  EXPECT_FALSE(IsGrowthDue(job.state, At(624)));
  EXPECT_TRUE(IsGrowthDue(job.state, At(625)));
}

TEST(World, DoesNotGrowIfItsStateDoesNotFit) {
  Scenario job = Smaller();
  job.Hear(60, GrowthDue{EpochId(2)});
  job.Hear(60.1, EpochStopped{EpochId(2)});
  EXPECT_THAT(job.Hear(60.2, RestoreChosen{EpochId(3), {}, {}, "its ranks differ"}), HasSubstr("vacate 2"));
  EXPECT_THAT(Names(job), ElementsAre("a", "c"));
  EXPECT_EQ(job.state.mode, Mode::kChoosing) << "the job goes on as it was";
}

// Of the machines a, b, c and, if they are four, d these say that they are broken.
Scenario Accused(Policy policy, const std::vector<int>& nodes, int standbys, int machines = 3) {
  std::vector<std::string> names = {"a", "b", "c", "d"};
  names.resize(static_cast<size_t>(machines));
  JobSpec spec;
  spec.least_nodes = 1;
  spec.most_nodes = machines;
  spec.standbys = standbys;
  spec.policy = std::move(policy);
  Scenario job = OfNodes(names, std::move(spec));
  for (int i = 0; i < standbys; ++i) job.Hear(13, kStandby);
  for (const int node : nodes) job.Hear(20, Alerted{node, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(19)});
  return job;
}

TEST(World, WhoIsMeantIsSaidByNameForTheNumbersAreNewOnes) {
  Scenario job = Accused({}, {1, 3}, 1, 4);
  EXPECT_THAT(job.Hear(21, EpochStopped{EpochId(1)}),
              HasSubstr("seat 1, announce 1, vacate 3, announce 1, resize to 3"));
  EXPECT_EQ(std::get<Seat>(job.commands[0]).standby.name, "s");
  EXPECT_EQ(std::get<Vacate>(job.commands[2]).left.name, "d");
  EXPECT_THAT(Names(job), ElementsAre("a", "s", "c"));
}

TEST(World, TheKeeperOfANodeThatLeavesStaysUntilTheJobTrainsAgain) {
  Scenario job = Accused({}, {1, 2}, 1);
  job.Hear(21, EpochStopped{EpochId(1)});
  EXPECT_THAT(Names(job), ElementsAre("a", "s", "c"));
}

TEST(World, MachinesThatLeaveCountNoMore) {
  Policy policy;
  policy.least_machines = 2;
  Scenario job = Accused(policy, {}, 0);
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(20)});
  EXPECT_THAT(job.Hear(31, AgentGone{1, "gone"}), HasSubstr("vacate 1"));
  job.Hear(31.1, Alerted{2, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(31)});
  job.Hear(31.2, EpochStopped{EpochId(1)});
  EXPECT_THAT(Names(job), ElementsAre("a", "c")) << "one machine would be left";
}

TEST(World, WhatElseHappensToAJobThatLostANodeDoesNotEndIt) {
  for (const bool stands_by : {false, true}) {
    Scenario job = ThreeNodes(1, 3);
    if (stands_by) job.Hear(13, kStandby);
    EXPECT_THAT(LoseB(job), HasSubstr(stands_by ? "seat 1" : "vacate 1"));
    job.Hear(21.25, Alerted{2, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(21)});
    job.Hear(21.3, EpochStopped{EpochId(1)});
    EXPECT_EQ(job.state.mode, Mode::kChoosing) << job.state.verdict;
  }
}

TEST(World, ANodeThatIsOutIsNotEvictedAgain) {
  Scenario job = ThreeNodes(1, 3);
  job.Hear(14, Killed(1, 0, SIGKILL));
  job.Restart(15, kPoint);
  job.ComeUp(16);
  job.See(13, 17);
  job.Hear(18, Killed(2, 0, SIGKILL));
  job.Hear(19, EpochStopped{EpochId(2)});
  ASSERT_EQ(job.state.mode, Mode::kProbing);
  job.Hear(19.1, AgentLost{1, "b", "its connection was lost", At(19)});
  EXPECT_THAT(job.Hear(30, AgentGone{1, "gone"}), HasSubstr("vacate 1"));
  EXPECT_TRUE(job.Hear(30.1, AgentLost{1, "b", "it never came", At(19)}).empty()) << "nobody waits for it";
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kMachineFault;
  finding.suspects = {{incident::Suspect::Kind::kNode, "b"}};
  finding.evidence = {"its sums differ"};
  finding.certain = true;
  job.Hear(31, Probed{EpochId(2), Rung::kDiagnose, {finding}, {}});
  job.Hear(31, Probed{EpochId(2), Rung::kReplay, {}, {}});
  EXPECT_EQ(job.state.evictions.size(), 1u);
  EXPECT_THAT(Names(job), ElementsAre("a", "c"));
}

TEST(World, WhoMissedItsBeginningHearsOfItBeforeItsEnd) {
  Scenario job = ThreeNodes(2, 3);
  LoseB(job);
  job.Hear(21.3, EpochStopped{EpochId(1)});
  job.Hear(21.4, RestoreChosen{EpochId(2), kPoint, {}});
  EXPECT_THAT(job.Hear(22, Killed(2, 0, SIGKILL)), HasSubstr("publish 2 1/12, kill 2"));
  job.Restart(23, kPoint);
  EXPECT_THAT(job.Hear(24, Killed(3, 0, SIGKILL)), Not(HasSubstr("publish"))) << "nobody has missed it who ended it";
}

TEST(World, TheNodeThatLeadsHasNoStandby) {
  JobSpec spec;
  spec.leading_node = 1;
  Scenario job = OfNodes({"a", "b"}, std::move(spec));
  job.Hear(13, kStandby);
  job.Hear(14, Killed(1, 0, SIGKILL));
  EXPECT_FALSE(IsReplaceable(job.state, 1)) << "the coordinator is in the process of its agent";
  EXPECT_TRUE(IsReplaceable(job.state, 0));
  EXPECT_THAT(job.Hear(140, StopOverdue{EpochId(1), {1}}), Not(HasSubstr("seat")));
}

TEST(World, OneNodeAloneDoesNotRestartInOrderToGrow) {
  JobSpec spec;
  spec.least_nodes = 1;
  spec.most_nodes = 2;
  spec.nodes = {{"a", 2, "a's"}};
  spec.ranks = 2;
  Scenario job(std::move(spec));
  job.Hear(1.5, kStandby);
  job.ComeUp(2);
  job.See(10, 12);
  EXPECT_FALSE(IsGrowthDue(job.state, At(100))) << "nobody could have its state";
}

TEST(World, HasNoNodeTwice) {
  Scenario job = Smaller();
  job.Hear(30, StandbyLeft{"s's"});
  job.Hear(30, AgentLost{1, "c", "its connection was lost", At(30)});
  job.Hear(30, StandbyCame{{"c", 2, "c booted anew"}});
  EXPECT_EQ(job.state.room_since, Nanos{});
  job.Hear(30, kStandby);
  job.Hear(60, GrowthDue{EpochId(2)});
  job.Hear(60.1, EpochStopped{EpochId(2)});
  EXPECT_THAT(Names(job), ElementsAre("a", "c", "s"));
  ASSERT_EQ(job.state.standbys.size(), 1u);
  EXPECT_EQ(job.state.standbys[0].token, "c booted anew");
}

TEST(World, WhoTookThePlaceOfOneThatJoinsJoins) {
  Scenario job = Smaller();
  job.Hear(60, GrowthDue{EpochId(2)});
  job.Hear(60.1, EpochStopped{EpochId(2)});
  job.Hear(60.2, StandbyCame{{"t", 2, "t's"}});
  job.Hear(60.3, AgentLost{2, "s", "its connection was lost", At(60.2)});
  EXPECT_THAT(job.Hear(75, AgentGone{2, "gone"}), HasSubstr("seat 2"));
  EXPECT_THAT(job.Hear(75.1, RestoreChosen{EpochId(3), {}, {}, "its ranks differ"}), HasSubstr("vacate 2"));
  EXPECT_THAT(Names(job), ElementsAre("a", "c"));
  EXPECT_EQ(job.state.mode, Mode::kChoosing) << "the job goes on as it was";
}

TEST(World, GrowthThatMadeUpForALossIsNotUndone) {
  Scenario job = Smaller();
  job.Hear(60, GrowthDue{EpochId(2)});
  job.Hear(60.1, EpochStopped{EpochId(2)});
  job.Hear(60.2, AgentLost{1, "c", "its connection was lost", At(60.2)});
  EXPECT_THAT(job.Hear(75, AgentGone{1, "gone"}), HasSubstr("vacate 1"));
  EXPECT_THAT(Names(job), ElementsAre("a", "s"));
  EXPECT_THAT(job.Hear(75.1, RestoreChosen{EpochId(3), {}, {}, "its ranks differ"}), HasSubstr("finish 3"))
      << "one node alone is fewer than there may be";
}

// ---- where the new world begins ----

RestoreFound Found(HeldAs held, std::vector<Replica> replicas, std::vector<KeptFor> kept = {}) {
  RestoreFound found{EpochId(2), {kPoint}, {}};
  found.held = held;
  found.replicas = std::move(replicas);
  found.kept = std::move(kept);
  return found;
}

// What a and c say, who were nodes 0 and 2 of 3, and c of what it keeps for b.
std::vector<EventBody> Choose(const Replica& of_a, const Replica& of_c, const std::vector<Replica>& of_b) {
  Fleet fleet({1, 0});
  fleet.Begin(EpochId(1));
  EXPECT_TRUE(fleet.Hear(0, Found({0, 3}, {of_a})).empty());
  std::vector<Replica> said = of_b;
  said.push_back(of_c);
  return fleet.Hear(1, Found({2, 3}, said));
}

const RestoreChosen& Chosen(const std::vector<EventBody>& events) { return std::get<RestoreChosen>(events.at(0)); }

TEST(WorldState, ReplicasGoOn) {
  EXPECT_EQ(Chosen(Choose({0, kPoint, 7, 7}, {2, kPoint, 7, 7}, {{1, kPoint, 7, 7}})).point, kPoint);
}

TEST(WorldState, RanksThatDifferDoNot) {
  for (const Replica& of_b : {Replica{1, kPoint, 8, 7}, Replica{1, kPoint, 0, 0}}) {
    const auto events = Choose({0, kPoint, 7, 7}, {2, kPoint, 7, 7}, {of_b});
    EXPECT_FALSE(Chosen(events).point);
    EXPECT_THAT(Chosen(events).unfit, HasSubstr("its ranks differ"));
  }
}

TEST(WorldState, WhatNobodyKnowsIsNotGuessed) {
  EXPECT_THAT(Chosen(Choose({0, kPoint, 7, 7}, {2, kPoint, 7, 7}, {})).unfit,
              HasSubstr("of 1 of 3 nodes nobody knows"));
}

// Nodes 1 and 2 have taken their places in the larger world, and answer as who stays; node 0 missed where that began,
// and the coordinator that knew it is gone.
TEST(WorldState, WhatOneHasTakenAlreadyIsTakenByTheOthers) {
  Fleet fleet({1, 2, 0});
  fleet.Begin(EpochId(1));
  EXPECT_TRUE(fleet.Hear(0, Found({0, 2}, {{0, kPoint, 7, 7}})).empty());
  EXPECT_TRUE(fleet.Hear(1, Found({1, 3}, {})).empty());
  EXPECT_EQ(Chosen(fleet.Hear(2, Found({2, 3}, {}))).point, kPoint);
}

TEST(WorldState, AScriptMaySaySo) {
  const uint64_t said = kSaidToBeReplica;
  EXPECT_EQ(Chosen(Choose({0, kPoint, said, said}, {2, kPoint, said, said}, {{1, kPoint, 8, 7}})).point, kPoint);
}

// The conversation of two nodes whose script cuts its state anew; what the disk then has.
std::vector<EventBody> CutAnew(const std::vector<CheckpointId>& on_disk, const std::string& unfit = "") {
  const uint64_t said = kSaidToBeCut;
  Fleet fleet({1, 0});
  fleet.Begin(EpochId(1));
  fleet.Hear(0, Found({0, 3}, {{0, kPoint, said, said}}));
  EXPECT_TRUE(fleet.Hear(1, Found({2, 3}, {{2, kPoint, said, said}, {1, kPoint, 8, 7}})).empty());
  std::vector<EventBody> events;
  for (const auto& [node, question] : fleet.TakeQuestions()) {
    RestoreFound found{EpochId(2), on_disk, {}, std::get<ChooseOnDisk>(question).not_above};
    found.unfit = unfit;
    events = fleet.Hear(node, found);
  }
  return events;
}

TEST(WorldState, WhatTheScriptCutsAnewComesFromDisk) {
  const CheckpointId flushed{EpochId(1), kPoint.step - 3};
  EXPECT_EQ(Chosen(CutAnew({flushed})).point, flushed);
  EXPECT_THAT(Chosen(CutAnew({})).unfit, HasSubstr("there is none")) << "it does not begin at the beginning";
  EXPECT_EQ(Chosen(CutAnew({}, "of 5 ranks")).unfit, "of 5 ranks");
}

TEST(WorldState, WhatWasAskedUnderAnotherNumberIsNoAnswer) {
  Fleet fleet({1, 0});
  fleet.Begin(EpochId(1));
  fleet.Hear(0, Found({0, 3}, {{0, kPoint, 7, 7}}));
  RestoreFound late = Found({2, 3}, {});  // on its way when c was told its new number: it does not say what b had
  late.as = {2, 3};
  EXPECT_TRUE(fleet.Hear(1, late).empty());
  RestoreFound anew = Found({2, 3}, {{1, kPoint, 7, 7}, {2, kPoint, 7, 7}});
  anew.as = {1, 2};
  EXPECT_EQ(Chosen(fleet.Hear(1, anew)).point, kPoint);
}

TEST(WorldState, AMachineThatJoinsFetchesTheCopyOfAnother) {
  Fleet fleet({1, 2, 0});
  fleet.Begin(EpochId(1));
  for (int node = 0; node < 3; ++node) fleet.Hear(node, KeepsAt{"host", 100 + node});
  fleet.Hear(0, Found({0, 2}, {{0, kPoint, 7, 7}}, {{1, kPoint}}));
  fleet.Hear(1, Found({1, 2}, {{1, kPoint, 7, 7}}));
  RestoreFound joins{EpochId(2), {}, {}};
  joins.held = {-1, 3};
  EXPECT_TRUE(fleet.Hear(2, joins).empty());
  const Fleet::Questions questions = fleet.TakeQuestions();
  ASSERT_EQ(questions.size(), 1u);
  const auto& fetch = std::get<FetchKept>(questions[0].second);
  EXPECT_EQ(questions[0].first, 2);
  EXPECT_EQ(std::pair(fetch.port, fetch.part), std::pair(100, 1));
  RestoreFound fetched{EpochId(2), {kPoint}, {}};
  fetched.fetched = kPoint;
  EXPECT_EQ(Chosen(fleet.Hear(2, fetched)).point, kPoint);
}

TEST(WorldState, WhatOneKeeperDoesNotGiveAnotherMay) {
  Fleet fleet({1, 2, 0});
  fleet.Begin(EpochId(1));
  for (int node = 0; node < 3; ++node) fleet.Hear(node, KeepsAt{"host", 100 + node});
  fleet.Hear(0, Found({0, 2}, {{0, kPoint, 7, 7}}, {{1, kPoint}}));
  fleet.Hear(1, Found({1, 2}, {{1, kPoint, 7, 7}}, {{0, kPoint}}));
  RestoreFound joins{EpochId(2), {}, {}};
  joins.held = {-1, 3};
  fleet.Hear(2, joins);
  RestoreFound nothing{EpochId(2), {}, {}};
  nothing.fetched = kPoint;
  for (const int keeper : {0, 1}) {
    const Fleet::Questions questions = fleet.TakeQuestions();
    ASSERT_EQ(questions.size(), 1u);
    EXPECT_EQ(std::get<FetchKept>(questions[0].second).port, 100 + keeper);
    const auto events = fleet.Hear(2, nothing);
    EXPECT_EQ(events.empty(), keeper == 0);
    if (keeper == 0) continue;
    EXPECT_THAT(Chosen(events).unfit, HasSubstr("nobody offers it"));
  }
}

TEST(WorldState, WhatNotAllCanHaveIsNotAskedFor) {
  const CheckpointId newer{EpochId(1), 13};
  const uint64_t said = kSaidToBeReplica;
  Fleet fleet({1, 2, 0});
  fleet.Begin(EpochId(1));
  for (int node = 0; node < 3; ++node) fleet.Hear(node, KeepsAt{"host", 100 + node});
  // Only b has the newer one, and keeps that of a: whoever lacks it may fetch it from b.
  fleet.Hear(0, Found({0, 2}, {{0, kPoint, said, said}}, {{1, kPoint}}));
  RestoreFound of_b = Found({1, 2}, {{1, kPoint, said, said}, {1, newer, said, said}}, {{0, newer}});
  of_b.points = {newer, kPoint};
  fleet.Hear(1, of_b);
  RestoreFound joins{EpochId(2), {}, {}};
  joins.held = {-1, 3};
  fleet.Hear(2, joins);
  for (const auto& [node, question] : fleet.TakeQuestions()) EXPECT_EQ(std::get<FetchKept>(question).point, newer);
  // The keeper has lost it meanwhile, for one of them.
  RestoreFound lost{EpochId(2), {}, {}};
  lost.fetched = newer;
  EXPECT_TRUE(fleet.Hear(0, lost).empty());
  const Fleet::Questions questions = fleet.TakeQuestions();
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_EQ(std::get<FetchKept>(questions[0].second).point, kPoint);
  RestoreFound late{EpochId(2), {newer}, {}};
  late.fetched = newer;
  EXPECT_TRUE(fleet.Hear(2, late).empty());
  EXPECT_TRUE(fleet.TakeQuestions().empty()) << "it is not asked for again and again";
  RestoreFound fetched{EpochId(2), {kPoint}, {}};
  fetched.fetched = kPoint;
  EXPECT_EQ(Chosen(fleet.Hear(2, fetched)).point, kPoint);
}

}  // namespace
}  // namespace lockstep::control
