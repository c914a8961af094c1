// What a job wants of its cluster's scheduler, and how it waits for a machine in place of one that is lost.
#include "lockstep/control/needs.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Nodes a and b of two ranks each, and a scheduler that can be asked; epoch 1 has finished step 10 at 12 s.
Scenario TwoNodes(const Policy& policy = {}, bool can_ask = true, bool observe_only = false) {
  JobSpec spec;
  spec.policy = policy;
  spec.can_ask = can_ask;
  spec.observe_only = observe_only;
  return OfNodes({"a", "b"}, std::move(spec));
}

Alerted Xid(int node, double since, bool cleared = false) {
  return {node, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(since), cleared};
}

const StandbyCame kStandby{{"s", 2, "s's"}};

TEST(Needs, NothingWhileAllIsWell) {
  Scenario job = TwoNodes();
  EXPECT_EQ(NeedsOf(job.state), schedule::Wanted{});
  job.Hear(13, kStandby);
  EXPECT_EQ(NeedsOf(job.state), schedule::Wanted{});
}

TEST(Needs, AMachineInPlaceOfOneThatIsBroken) {
  Scenario job = TwoNodes();
  job.Hear(20, Xid(1, 20));
  const schedule::Wanted wanted = NeedsOf(job.state);
  EXPECT_EQ(wanted.machines, 1);
  EXPECT_EQ(wanted.incident, 1);
  EXPECT_THAT(wanted.here, ElementsAre("a", "b"));
  EXPECT_THAT(wanted.drains, IsEmpty()) << "it is in the job still";
  job.See(11, 21);
  EXPECT_EQ(NeedsOf(job.state).machines, 1) << "also when the incident is closed";
  Scenario cleared = job;
  cleared.Hear(22, Xid(1, 20, true));
  EXPECT_EQ(NeedsOf(cleared.state).machines, 0);
  job.Hear(30, kStandby);
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
}

TEST(Needs, AMachineThatIsFitWhereThatWhichStandsByIsNot) {
  Scenario job = TwoNodes();
  job.Hear(13, kStandby);
  Alerted broken = Xid(-1, 14);
  broken.token = kStandby.node.token;
  job.Hear(14, broken);
  EXPECT_EQ(NeedsOf(job.state), schedule::Wanted{}) << "nobody is to be replaced";
  job.Hear(20, Xid(1, 20));
  EXPECT_EQ(NeedsOf(job.state).machines, 1);
  EXPECT_THAT(NeedsOf(job.state).here, ElementsAre("a", "b", "s"));
}

TEST(Needs, ADrainOfWhatWasEvictedUntilItIsToldWhatCameOfIt) {
  Scenario job = TwoNodes();
  job.Hear(13, kStandby);
  job.Hear(20, Xid(1, 20));
  job.Hear(21, EpochStopped{EpochId(1)});
  ASSERT_EQ(job.state.evictions.size(), 1u);
  const std::vector<schedule::Drain> drains = NeedsOf(job.state).drains;
  EXPECT_THAT(drains, ElementsAre(schedule::Drain{"b", "lockstep: incident 1: gpu_xid of gpu3: Xid 79", 1}));
  EXPECT_EQ(job.Hear(21.1, ClusterDid{1, "b", "Slurm drains node b: no other job gets it"}), "announce 1");
  EXPECT_THAT(NeedsOf(job.state).drains, IsEmpty());
  EXPECT_EQ(job.Incident(0).actions.back().text, "Slurm drains node b: no other job gets it");
  EXPECT_EQ(job.Hear(21.2, ClusterDid{7, "", "of no incident"}), "");
}

TEST(Needs, NoDrainOfANodeThatWasLost) {
  Scenario job = TwoNodes();
  job.Hear(13, kStandby);
  job.Hear(31, AgentGone{1, "its agent is silent"});
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_THAT(NeedsOf(job.state).drains, IsEmpty());
}

TEST(Needs, NothingOfWhoOnlyObservesRunsDryOrIsOver) {
  Policy dry;
  dry.dry_run = true;
  for (Scenario job : {TwoNodes({}, true, true), TwoNodes(dry), TwoNodes({}, false)}) {
    job.Hear(20, Xid(1, 20));
    EXPECT_EQ(NeedsOf(job.state), schedule::Wanted{});
  }
  Scenario ended = TwoNodes();
  ended.Hear(20, Xid(1, 20));
  ended.Hear(21, StopAsked{SIGTERM});
  EXPECT_EQ(NeedsOf(ended.state), schedule::Wanted{});
}

TEST(Needs, NoMachineThatACapWouldKeepOut) {
  Policy none;
  none.evictions_per_hour = 0;
  Scenario job = TwoNodes(none);
  job.Hear(20, Xid(1, 20));
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
}

TEST(Awaited, ALostNodeIsAwaitedWhereAnotherCanBeAskedFor) {
  Scenario job = TwoNodes();
  EXPECT_EQ(LoseB(job), "kill 1 after 0 s, announce 2, ask for 1 nodes, announce 2");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  const schedule::Wanted wanted = NeedsOf(job.state);
  EXPECT_EQ(wanted.machines, 1);
  EXPECT_EQ(wanted.incident, 2);
  EXPECT_EQ(job.Incident(1).actions.back().text,
            "nobody stands by for node b: another machine is asked for, and awaited for 600 s");
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(621.2));
  EXPECT_EQ(job.Hear(40, kStandby), "announce 1, seat 1, announce 2") << "the job stands: at once";
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
  EXPECT_THAT(job.state.awaited, IsEmpty());
  EXPECT_EQ(job.Headline(1), "node b is lost, and its ranks with it: its connection was lost");
  EXPECT_EQ(job.Hear(40.2, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.state.spec.nodes[1].name, "s");
}

TEST(Awaited, OfTwoTheOneThatWasLostNearestToTheFaultIsReplacedFirst) {
  JobSpec spec;
  spec.can_ask = true;
  Scenario job = OfNodes({"a", "b", "c"}, std::move(spec));
  job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
  job.Hear(20, AgentLost{2, "c", "its connection was lost", At(20)});
  job.Hear(20.2, LostPeer(1, 0, Step(12, 19), 20.1));
  job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(job.state.awaited.size(), 2u);
  job.Hear(40, kStandby);
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions.front().node.name, "c");
  EXPECT_THAT(job.state.evictions.front().why, HasSubstr("out of reach (b, c) it was lost nearest to when"));
}

TEST(Awaited, OfTwoTheOneWhoseRanksWereEndedByTheirStarterIsReplacedFirst) {
  JobSpec spec;
  spec.can_ask = true;
  Scenario job = OfNodes({"a", "b", "c"}, std::move(spec));
  job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
  job.Hear(53, AgentLost{2, "c", "its connection was lost", At(53)});
  job.Hear(73.4, LostPeer(1, 0, Step(72, 73), 73.3));
  job.Hear(74.4, SecondaryGraceOver{EpochId(1)});
  job.Hear(80, kStandby);
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions.front().node.name, "b");
  EXPECT_THAT(incident::Lead(job.state.incidents.back()).ambiguous_with, testing::IsEmpty()) << "c stepped on for 20 s";
}

TEST(Awaited, IsNotForEver) {
  Scenario job = TwoNodes();
  LoseB(job);
  EXPECT_EQ(job.Hear(100, AgentGone{1, "silent"}), "") << "too early";
  EXPECT_FALSE(IsEnd(job.state, 1, At(621.1)));
  EXPECT_TRUE(IsEnd(job.state, 1, At(621.2)));
  job.Hear(621.2, AgentGone{1, "silent"});
  EXPECT_EQ(job.state.exit_code, kExitLost);
  EXPECT_EQ(job.state.verdict, "node b is lost: silent; another machine was asked for, and none came");
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
}

TEST(Awaited, NotWhileTheCoordinatorWasAway) {
  Scenario job = TwoNodes();
  LoseB(job);
  EXPECT_EQ(job.Hear(330, WaitInterrupted{At(30)}), "") << "nobody is told: no incident";
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(921.2));
  EXPECT_FALSE(IsEnd(job.state, 1, At(921.1)));
  job.Hear(340, WaitInterrupted{At(10)});
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(940)) << "no earlier than it is awaited";
}

TEST(Awaited, OfAJournalOfAnOlderVersionAsLongAsThere) {
  Scenario job = TwoNodes();
  LoseB(job);
  job.Hear(330, WatcherGone{At(30)});
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(621.2));
}

TEST(Awaited, UntilTheNodeIsBack) {
  Scenario job = TwoNodes();
  LoseB(job);
  job.Hear(30, AgentBack{1});
  EXPECT_THAT(job.state.awaited, IsEmpty());
  EXPECT_EQ(NeedsOf(job.state).machines, 0);
  EXPECT_EQ(job.Hear(31, EpochStopped{EpochId(1)}), "choose for 2");
}

TEST(Awaited, AlsoWhereNobodyNoticedThatItIsGone) {
  Scenario job = TwoNodes();
  job.Hear(20, AgentLost{1, "b", "nothing heard for 4 s", At(20)});
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(30));
  EXPECT_EQ(job.Hear(30, AgentGone{1, "silent"}), "ask for 1 nodes, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning) << "it may come back, and its ranks may train on";
  EXPECT_EQ(job.Hear(50, kStandby), "");
  EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(30)) << "now it can be replaced";
  EXPECT_EQ(job.Hear(50.1, AgentGone{1, "silent"}), "kill 1 after 0 s, announce 2, announce 1, seat 1, announce 2");
}

TEST(Awaited, NobodyWithoutASchedulerOrLeave) {
  Policy keep;
  keep.may_evict = {"inspection"};
  for (Scenario job : {TwoNodes({}, false), TwoNodes(keep)}) {
    EXPECT_EQ(LoseB(job), "kill 1 after 0 s, announce 2");
    EXPECT_THAT(job.state.awaited, IsEmpty());
    EXPECT_EQ(GoneAt(job.state, 1, At(20)), At(85));
    job.Hear(85, AgentGone{1, "silent"});
    EXPECT_EQ(job.state.exit_code, kExitLost);
    EXPECT_EQ(job.state.verdict, "node b is lost: silent");
  }
}

TEST(Awaited, NoNodeThatItselfSaysThatItsWorkersAreGone) {
  Scenario job = TwoNodes();
  job.Hear(20, AgentGone{1, "its starter was killed"});
  EXPECT_EQ(job.state.exit_code, kExitLost);
}

}  // namespace
}  // namespace lockstep::control
