// What the policy makes of faults, as conversations.
#include <gmock/gmock.h>
#include <signal.h>

#include "lockstep/control/machine.h"
#include "lockstep/control/needs.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

// Nodes a, b and c of two ranks each; epoch 1 has finished step 10 at 12 s. Standbys s0, s1 ... wait.
Scenario ThreeNodes(int standbys, const Policy& policy = {}, bool observe_only = false) {
  JobSpec spec;
  spec.standbys = standbys;
  spec.policy = policy;
  spec.observe_only = observe_only;
  Scenario job = OfNodes({"a", "b", "c"}, std::move(spec));
  for (int i = 0; i < standbys; ++i) job.Hear(12, StandbyCame{{fmt::format("s{}", i), 2, fmt::format("s{}'s", i)}});
  return job;
}

Alerted Alert(int node, AlertClass kind, double since, bool cleared = false) {
  return {node, kind == AlertClass::kMachine ? "gpu_xid" : "link", kind, "gpu3", "Xid 79", At(since), cleared};
}

Probed Names(const Scenario& job, Rung rung, const std::string& node, bool certain = true) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kMachineFault;
  finding.suspects = {{incident::Suspect::Kind::kNode, node}};
  finding.evidence = {"its sums differ"};
  finding.certain = certain;
  return {job.state.epoch, rung, {finding}, {}};
}

void CrashAndComeBack(Scenario& job, double at) {
  job.Hear(at, Killed(job.state.epoch.value(), 2, SIGKILL));
  job.Restart(at + 1, Checkpoint(job.state.epoch.value(), job.state.progress.step));
  job.ComeUp(at + 2);
  job.See(job.state.frontier + 1, at + 3);
}

TEST(Eviction, OfABrokenMachineWaitsForItsRanksToEnd) {
  Scenario job = ThreeNodes(1);
  EXPECT_EQ(job.Hear(20, Alert(1, AlertClass::kMachine, 19)), "kill 1 after 0 s, wait 20 s for the end, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  EXPECT_TRUE(job.state.evictions.empty());
  EXPECT_EQ(job.Hear(21, EpochStopped{EpochId(1)}), "choose for 2, seat 1, announce 1");
  EXPECT_EQ(job.state.spec.nodes[1].name, "s0");
  EXPECT_EQ(job.Headline(0), "node b has a broken machine: gpu_xid of gpu3: Xid 79");
  job.Hear(22, RestoreChosen{EpochId(2), Checkpoint(1, 10), {}});
  EXPECT_EQ(job.Incident(0).actions[0].rung, "evict");
  EXPECT_THAT(job.Incident(0).actions[0].reason, HasSubstr("the machine itself says that it is broken"));
  job.ComeUp(23);
  job.See(11, 24);
  EXPECT_FALSE(job.state.open.has_value()) << "the alerts went with the machine";
  EXPECT_EQ(job.state.free_retries, 1) << "no failure of the job";
}

TEST(Eviction, DoesNotWaitForRanksThatNeverEnd) {
  Scenario job = ThreeNodes(1);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  EXPECT_EQ(job.Hear(40, StopOverdue{EpochId(1)}), "seat 1, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kStopping) << "those of the other nodes";
  EXPECT_EQ(job.Hear(41, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.state.evictions.size(), 1u);
}

// What a node that is gone had is kept by the one behind it in the ring, and by nobody else.
TEST(Eviction, NeverOfANodeAndItsKeeperAtOnce) {
  Scenario job = ThreeNodes(2);
  job.Hear(20, Alert(2, AlertClass::kMachine, 19));
  EXPECT_EQ(job.Hear(40, StopOverdue{EpochId(1), {}, {1, 2}}), "wait 20 s for the end") << "node 1 may be gone, too";
  EXPECT_TRUE(job.state.evictions.empty());
  job.Hear(140, StopOverdue{EpochId(1), {1}});
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions[0].node.name, "b");
  job.Hear(141, EpochStopped{EpochId(1)});
  EXPECT_EQ(job.state.evictions.size(), 1u) << "node c keeps what node b had";
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("node c keeps its place until the job trains again"));
}

TEST(Eviction, OfANodeWhoseRanksHangInTheKernel) {
  Scenario job = ThreeNodes(1);
  EXPECT_EQ(job.Hear(20, Killed(1, 0, SIGKILL)), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(job.Hear(140, StopOverdue{EpochId(1), {2}}), "seat 2, announce 1, announce 1");
  EXPECT_EQ(job.state.evictions.back().node.name, "c");
  EXPECT_EQ(job.state.evictions.back().role, Role::kLoss);
  EXPECT_EQ(job.Hear(140, EpochStopped{EpochId(1)}), "choose for 2");
}

TEST(End, ComesWithoutRanksThatHangInTheKernel) {
  Scenario job = ThreeNodes(1);
  EXPECT_EQ(job.Hear(20, StopAsked{SIGTERM}), "kill 1 after 30 s, wait 150 s for the end");
  EXPECT_EQ(job.Hear(30, StopAsked{SIGTERM}), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(150, StopOverdue{EpochId(1), {}, {0, 2}}), "finish 1");
  EXPECT_EQ(job.state.exit_code, kExitFailed);
  EXPECT_THAT(job.state.verdict, HasSubstr("SIGTERM; but processes of node a, c have not ended 120 s after"));
}

TEST(Eviction, OfNobodyWhereThereIsNoStandbyForRanksThatHang) {
  Scenario job = ThreeNodes(0);
  job.Hear(20, Killed(1, 0, SIGKILL));
  EXPECT_EQ(job.Hear(140, StopOverdue{EpochId(1), {1, 2}}), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("there is no standby for it, so the restart waits"));
  EXPECT_EQ(job.Hear(300, EpochStopped{EpochId(1)}), "choose for 2") << "the file system is back";
}

TEST(Eviction, OfRanksThatHangWhenAStandbyComesAtLast) {
  Scenario job = ThreeNodes(0);
  job.state.spec.can_ask = true;
  job.Hear(20, Killed(1, 0, SIGKILL));
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
  job.Hear(140, StopOverdue{EpochId(1), {2}});
  EXPECT_EQ(NeedsOf(job.state).machines, 1);
  const NodeSpec standby{"s0", job.state.spec.nodes[2].ranks, "token s0"};
  job.Hear(200, StandbyCame{standby});
  EXPECT_EQ(job.Hear(200, StopOverdue{EpochId(1), {2}}), "seat 2, announce 1, announce 1");
  EXPECT_EQ(job.state.spec.nodes[2].name, "s0");
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
  EXPECT_EQ(job.Hear(201, EpochStopped{EpochId(1)}), "choose for 2");
}

TEST(Eviction, WaitsForAStandbyWhileTheJobTrains) {
  Scenario job = ThreeNodes(0);
  EXPECT_EQ(job.Hear(20, Alert(1, AlertClass::kMachine, 19)), "ask for 1 nodes, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_THAT(job.Incident(0).actions[0].text, HasSubstr("no standby waits"));
  job.See(11, 21);
  EXPECT_FALSE(job.state.open.has_value());
  EXPECT_EQ(job.Hear(22, Alert(1, AlertClass::kMachine, 19)), "") << "said again";
  EXPECT_EQ(job.Hear(30, StandbyCame{{"s", 2, "s's"}}), "kill 1 after 0 s, wait 20 s for the end, announce 2");
  job.Hear(31, EpochStopped{EpochId(1)});
  EXPECT_EQ(job.state.spec.nodes[1].name, "s");
}

TEST(Eviction, IsNotNeededOnceTheAlertIsCleared) {
  Scenario job = ThreeNodes(0);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  job.Hear(21, Alert(1, AlertClass::kMachine, 19, true));
  EXPECT_EQ(job.Hear(30, StandbyCame{{"s", 2, "s's"}}), "");
}

TEST(Eviction, OfAStandbyThatLeftIsNone) {
  Scenario job = ThreeNodes(1);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  job.Hear(20.5, StandbyLeft{"s0's"});
  EXPECT_EQ(job.Hear(21, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_TRUE(job.state.evictions.empty());
  EXPECT_EQ(job.Incident(0).actions.back().text,
            "node b keeps its place: no standby waits that could take the place of node b");
}

TEST(Eviction, KeepsToTheCapThoughAnotherNodeIsLostMeanwhile) {
  Policy policy;
  policy.evictions_per_hour = 1;
  Scenario job = ThreeNodes(2, policy);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  job.Hear(31, AgentGone{2, "its agent is silent"});
  EXPECT_EQ(job.Hear(32, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.state.evictions.size(), 1u) << "the node that was lost";
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("node b keeps its place: the cap of 1"));
}

TEST(Eviction, NeverOfWhoeverHasThePlaceByThen) {
  Scenario job = ThreeNodes(2);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  job.Hear(20.1, AgentLost{1, "b", "its connection was lost", At(20)});
  job.Hear(31, AgentGone{1, "its agent is silent"});
  EXPECT_EQ(job.state.spec.nodes[1].name, "s0");
  EXPECT_EQ(job.Hear(32, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.state.spec.nodes[1].name, "s0");
}

TEST(Eviction, JoinsARestartThatIsUnderWay) {
  Scenario job = ThreeNodes(1);
  job.Hear(20, Killed(1, 3, SIGKILL));
  EXPECT_EQ(job.Hear(20.1, Alert(1, AlertClass::kMachine, 19)), "wait 20 s for the end");
  EXPECT_EQ(job.Hear(21, EpochStopped{EpochId(1)}), "choose for 2, seat 1, announce 1");
}

TEST(Eviction, IsOnlySaidByWhoOnlyObservesOrRunsDry) {
  Scenario observed = ThreeNodes(1, {}, true);
  EXPECT_EQ(observed.Hear(20, Alert(1, AlertClass::kMachine, 19)), "announce 1");
  EXPECT_FALSE(observed.Incident(0).actions[0].done);
  EXPECT_EQ(observed.Incident(0).actions[0].kind, incident::ActionKind::kEvict);
  Policy dry;
  dry.dry_run = true;
  Scenario said = ThreeNodes(1, dry);
  EXPECT_EQ(said.Hear(20, Alert(1, AlertClass::kMachine, 19)), "announce 1");
  EXPECT_THAT(said.Incident(0).actions[0].text, HasSubstr("dry run"));
  EXPECT_EQ(said.state.mode, Mode::kRunning);
}

TEST(Eviction, NeverOfTheNodeThatLeads) {
  JobSpec spec;
  spec.ranks = 2;
  spec.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
  spec.leading_node = 0;
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.Hear(3, StandbyCame{{"s", 1, "s's"}});
  EXPECT_EQ(job.Hear(4, Alert(0, AlertClass::kMachine, 4)), "announce 1");
}

TEST(Eviction, KeepsToTheCap) {
  Policy policy;
  policy.evictions_per_hour = 1;
  Scenario job = ThreeNodes(2, policy);
  job.Hear(20, Alert(1, AlertClass::kMachine, 19));
  job.Restart(21, Checkpoint(1, 10));
  job.ComeUp(22);
  job.See(11, 23);
  EXPECT_EQ(job.Hear(24, Alert(2, AlertClass::kMachine, 24)), "announce 2");
  EXPECT_THAT(job.Incident(1).actions[0].text, HasSubstr("the cap of 1 evictions an hour is reached"));
  EXPECT_EQ(job.Hear(3700, Alert(2, AlertClass::kMachine, 3700)).substr(0, 4), "kill") << "an hour later, found again";
}

TEST(Network, TakesTwoAlertsInFiveMinutes) {
  Scenario job = ThreeNodes(1);
  EXPECT_EQ(job.Hear(20, Alert(1, AlertClass::kNetwork, 20)), "announce 1");
  job.Hear(23, Alert(1, AlertClass::kNetwork, 20, true));
  job.See(11, 24);
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  Scenario late = job;
  EXPECT_EQ(late.Hear(330, Alert(1, AlertClass::kNetwork, 330)), "announce 2") << "the first is too old";
  EXPECT_EQ(job.Hear(200, Alert(1, AlertClass::kNetwork, 200)), "kill 1 after 0 s, wait 20 s for the end, announce 2");
  Scenario both = ThreeNodes(1);
  both.Hear(20, Alert(1, AlertClass::kNetwork, 20));
  both.Hear(21, Alert(2, AlertClass::kNetwork, 21));
  both.Hear(22, Alert(1, AlertClass::kNetwork, 22));
  EXPECT_EQ(both.state.mode, Mode::kRunning) << "a switch, and not a node";
}

TEST(Ladder, ASecondCrashIsDiagnosedAndReplayed) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  EXPECT_EQ(job.state.ladder.back().rung, Rung::kReattempt);
  job.Hear(30, Killed(2, 2, SIGKILL));
  EXPECT_EQ(job.Hear(31, EpochStopped{EpochId(2)}), "diagnose 2, announce 2");
  EXPECT_EQ(job.state.mode, Mode::kProbing);
  EXPECT_EQ(Text(PendingCommands(job.state)), "diagnose 2");
  EXPECT_EQ(job.Hear(31, Probed{EpochId(2), Rung::kReplay}), "") << "was not asked";
  EXPECT_EQ(job.Hear(35, Probed{EpochId(2), Rung::kDiagnose}), "replay 2, announce 2");
  EXPECT_EQ(job.Hear(45, Names(job, Rung::kReplay, "c")), "choose for 3, seat 2, announce 2");
  EXPECT_EQ(job.state.evictions[0].role, Role::kReplay);
  EXPECT_EQ(job.state.evictions[0].node.name, "c");
  EXPECT_NEAR(ToSeconds(job.state.ledger.Total(At(45))[static_cast<size_t>(Phase::kDecide)]).value, 14, 1e-9);
}

TEST(Ladder, BeginsAnewAfterTenMinutesOfTraining) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(700, Killed(2, 2, SIGKILL));
  EXPECT_EQ(job.Hear(701, EpochStopped{EpochId(2)}), "choose for 3");
}

TEST(Ladder, OfEachKindIsItsOwn) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(30, Suspect(2, 2, true, 28));
  job.Hear(31, StacksKept{EpochId(2), ""});
  EXPECT_EQ(job.Hear(32, EpochStopped{EpochId(2)}), "choose for 3");
}

TEST(Ladder, TriesEachRungOnce) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(30, Killed(2, 2, SIGKILL));
  job.Hear(31, EpochStopped{EpochId(2)});
  job.Hear(32, Probed{EpochId(2), Rung::kDiagnose});
  EXPECT_EQ(job.Hear(33, Probed{EpochId(2), Rung::kReplay, {}, {"c"}}), "choose for 3");
  EXPECT_THAT(job.Incident(1).actions.back().text, HasSubstr("nothing found (1 of 3 nodes did not answer in time: c)"));
  job.Hear(34, RestoreChosen{EpochId(3), Checkpoint(1, 11), {}});
  job.ComeUp(35);
  job.See(13, 36);
  job.Hear(40, Killed(3, 2, SIGKILL));
  EXPECT_EQ(job.Hear(41, EpochStopped{EpochId(3)}), "choose for 4");
  EXPECT_EQ(job.state.decisions.back().decision.reason, "all rungs were tried, and restarts are left");
}

TEST(Ladder, AnUncertainFindingEvictsNobody) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(30, Killed(2, 2, SIGKILL));
  job.Hear(31, EpochStopped{EpochId(2)});
  EXPECT_EQ(job.Hear(35, Names(job, Rung::kDiagnose, "b", false)), "replay 2, announce 2");
  EXPECT_EQ(job.Hear(36, Names(job, Rung::kReplay, "nobody")), "choose for 3");
}

TEST(Ladder, CanBeStoppedWhileItProbes) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(30, Killed(2, 2, SIGKILL));
  job.Hear(31, EpochStopped{EpochId(2)});
  EXPECT_EQ(job.Hear(32, StopAsked{SIGTERM}), "announce 2, finish 1");
}

TEST(Ladder, ALostNodeIsReplacedWhileItProbes) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  job.Hear(30, Killed(2, 2, SIGKILL));
  job.Hear(31, EpochStopped{EpochId(2)});
  EXPECT_EQ(job.Hear(60, AgentGone{2, "its agent is silent"}), "seat 2, announce 2");
  EXPECT_EQ(job.state.mode, Mode::kProbing);
  EXPECT_EQ(job.Hear(61, Probed{EpochId(2), Rung::kDiagnose}), "replay 2, announce 2");
}

Suspected Nan(const Scenario& job, int64_t from) {
  incident::Finding finding;
  finding.syndrome = incident::Syndrome::kNan;
  finding.evidence = {"nan since step 8"};
  finding.certain = true;
  finding.since = At(12);
  return {job.state.epoch, finding, {}, from};
}

TEST(Nan, GoesBackToBeforeIt) {
  Scenario job = ThreeNodes(1);
  EXPECT_EQ(job.Hear(13, Nan(job, 8)), "kill 1 after 0 s, announce 1");
  job.Hear(14, EpochStopped{EpochId(1)});
  ASSERT_FALSE(job.commands.empty());
  EXPECT_EQ(std::get<ChooseRestore>(job.commands[0]).poisoned, std::vector{Checkpoint(1, 8)});
  job.Hear(15, RestoreChosen{EpochId(2), std::nullopt, {}});
  EXPECT_THAT(job.state.incidents[0].actions.back().text,
              HasSubstr("from the beginning: there is no checkpoint from before step 8"));
  EXPECT_THAT(job.state.incidents[0].actions.back().text, HasSubstr("up to which the loss was finite"));
  Policy patient;
  patient.nan_restart = false;
  Scenario named = ThreeNodes(1, patient);
  EXPECT_EQ(named.Hear(13, Nan(named, 8)), "announce 1");
  EXPECT_EQ(named.state.mode, Mode::kRunning);
}

// Steps say nothing of it.
TEST(Nan, ThatIsOnlyNamedIsOpenUntilALossIsFinite) {
  Policy patient;
  patient.nan_restart = false;
  for (Scenario job : {ThreeNodes(0, patient), ThreeNodes(0, {}, true)}) {
    EXPECT_EQ(job.Hear(13, Nan(job, 8)), "announce 1");
    job.See(20, 22);
    EXPECT_EQ(job.Hear(22.5, Nan(job, 8)), "") << "it is known";
    EXPECT_EQ(job.Hear(23, CaughtUp{EpochId(1), Step(20, 22)}), "");
    EXPECT_EQ(job.Incident(0).closed, Nanos{});
    EXPECT_EQ(job.Hear(24, CaughtUp{EpochId(1), Step(20, 22), true}), "announce 1");
    EXPECT_EQ(job.Incident(0).closed, At(24));
    EXPECT_EQ(job.Incident(0).actions.back().text, "the loss is a finite number again");
    EXPECT_EQ(job.state.ledger.Current(), Phase::kProductive);
  }
}

TEST(Nan, ThatIsOnlyNamedDoesNotHideWhatComesNext) {
  Policy patient;
  patient.nan_restart = false;
  for (const bool observe_only : {false, true}) {
    Scenario job = ThreeNodes(0, patient, observe_only);
    job.Hear(13, Nan(job, 8));
    job.See(20, 22);
    EXPECT_FALSE(job.state.open) << "what waits for a job that is well does not wait";
    for (const int64_t id : {2, 3}) {
      EXPECT_EQ(job.Hear(20.0 + static_cast<double>(id), Suspect(1, 2, false, 29)), fmt::format("announce {}", id));
      job.See(20 + id, 20.5 + static_cast<double>(id));
    }
    job.Hear(30, Killed(1, 2, SIGKILL, Step(23, 24), 30));
    EXPECT_EQ(job.state.incidents.size(), 4u);
    EXPECT_EQ(job.Headline(0), "the job has a loss that is no number any more: nan since step 8");
  }
}

// One that is named ends no other incident, and none that was open before becomes part of it.
TEST(Nan, ThatIsNamedWhileAnotherIsOpenIsAnIncidentOfItsOwn) {
  Policy patient;
  patient.nan_restart = false;
  Scenario job = ThreeNodes(0, patient);
  EXPECT_EQ(job.Hear(13, Suspect(1, 2, false, 13)), "announce 1");
  EXPECT_EQ(job.Hear(14, Nan(job, 8)), "announce 2");
  job.See(20, 22);
  EXPECT_EQ(job.Incident(0).closed, At(22));
  EXPECT_EQ(job.Incident(1).closed, Nanos{});
  job.Hear(23, StopAsked{SIGTERM});
  job.Hear(24, EpochStopped{EpochId(1)});
  EXPECT_EQ(job.Incident(1).closed, At(24));
}

// Of a crash that came before the loss had been bad for long enough to be a finding of its own.
TEST(Nan, ACrashMeanwhileGoesBackToBeforeItToo) {
  Scenario job = ThreeNodes(1);
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Hear(14, EpochStopped{EpochId(1), Checkpoint(1, 8)});
  ASSERT_FALSE(job.commands.empty());
  EXPECT_EQ(std::get<ChooseRestore>(job.commands[0]).poisoned, std::vector{Checkpoint(1, 8)});
  job.Hear(15, RestoreChosen{EpochId(2), Checkpoint(1, 7), {}});
  EXPECT_THAT(job.state.incidents[0].actions.back().text,
              HasSubstr("from step 7, for the loss was finite up to step 8 only"));
  Policy patient;
  patient.nan_restart = false;
  Scenario named = ThreeNodes(1, patient);
  named.Hear(13, Killed(1, 2, SIGKILL));
  named.Hear(14, EpochStopped{EpochId(1), Checkpoint(1, 8)});
  EXPECT_THAT(std::get<ChooseRestore>(named.commands[0]).poisoned, testing::IsEmpty());
}

// No loss of epoch 2 was finite: it began from what was bad.
TEST(Nan, GoesBackBeyondTheEpoch) {
  Scenario job = ThreeNodes(1);
  CrashAndComeBack(job, 20);
  Suspected nan = Nan(job, 8);
  nan.bad_epoch = EpochId(1);
  job.Hear(30, nan);
  job.Hear(31, EpochStopped{EpochId(2), Checkpoint(1, 9)});
  ASSERT_FALSE(job.commands.empty());
  EXPECT_EQ(std::get<ChooseRestore>(job.commands[0]).poisoned, (std::vector{Checkpoint(1, 8), Checkpoint(2, 0)}));
}

}  // namespace
}  // namespace lockstep::control
