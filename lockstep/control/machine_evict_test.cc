// Lost nodes, and those that stand by.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/four_ranks.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/report.h"

namespace lockstep::control {
namespace {

// Nodes a and b of two ranks each, and s that stands by.
Scenario WithStandby(JobSpec spec = FourRanks()) {
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  spec.standbys = 1;
  Scenario job = Training(std::move(spec));
  EXPECT_EQ(job.Hear(12, StandbyCame{{"s", 2, "s's"}}), "");
  return job;
}

TEST(Watcher, AnEndForALostNodeJoinsTheIncidentThatIsOpen) {
  for (const bool crashed_first : {true, false}) {
    Scenario job = WithStandby();
    job.Hear(13, StandbyLeft{"s's"});
    if (!crashed_first) job.Hear(14, AgentLost{1, "b", "its connection was lost", At(14)});
    job.Hear(15, Killed(1, 0, SIGKILL, {}, 15));
    if (crashed_first) job.Hear(16, AgentLost{1, "b", "its connection was lost", At(16)});
    job.Hear(90, AgentGone{1, "its agent is silent"});
    EXPECT_EQ(job.Hear(91, EpochStopped{EpochId(1)}),
              crashed_first ? "announce 1, announce 2, finish 3" : "announce 2, announce 1, finish 3");
    ASSERT_EQ(job.state.incidents.size(), 2u);
    EXPECT_EQ(job.Headline(crashed_first ? 0 : 1), crashed_first
                                                       ? "rank 0 was killed by a signal: SIGKILL (signal 9) in step 11"
                                                       : "node b is lost, and its ranks with it: its agent is silent");
    EXPECT_EQ(job.Incident(crashed_first ? 0 : 1).findings.size(), 2u);
  }
}

TEST(Watcher, AnEndForALostNodeIsNotHiddenByWhatWasOnlyNamed) {
  Scenario job = WithStandby();
  job.Hear(13, StandbyLeft{"s's"});
  incident::Finding slow;
  slow.syndrome = incident::Syndrome::kNonCommunicationSlow;
  slow.suspects = {incident::SuspectRank(RankId(0))};
  slow.evidence = {"it is slow"};
  slow.certain = true;
  slow.since = At(13);
  EXPECT_EQ(job.Hear(14, Suspected{EpochId(1), slow, Step(10, 12)}), "announce 1");
  job.Hear(15, AgentLost{1, "b", "its connection was lost", At(15)});
  job.Hear(90, AgentGone{1, "its agent is silent"});
  EXPECT_EQ(job.Headline(0), "node b is lost, and its ranks with it: its agent is silent");
  EXPECT_EQ(job.Incident(0).findings.size(), 2u);
}

TEST(Standby, TakesThePlaceOfALostNode) {
  Scenario job = WithStandby();
  EXPECT_EQ(job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)}), "announce 1") << "its ranks train on";
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_EQ(job.Hear(30, AgentGone{1, "its agent is silent"}),
            "kill 1 after 0 s, announce 2, announce 1, seat 1, announce 2");
  EXPECT_EQ(job.state.spec.nodes[1].name, "s");
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions[0].node.name, "b");
  EXPECT_EQ(job.Headline(1), "node b is lost, and its ranks with it: its agent is silent");
  EXPECT_EQ(job.Incident(0).closed, At(30));
  job.Restart(31, Checkpoint(1, 9));
  job.ComeUp(32);
  job.Hear(33, CaughtUp{EpochId(2), Step(11, 33)});
  EXPECT_FALSE(job.state.open.has_value());
  EXPECT_EQ(job.Hear(40, AgentLost{1, "s", "its connection was lost", At(39)}), "announce 3");
  EXPECT_EQ(job.Hear(105, AgentGone{1, "its agent is silent"}), "kill 2 after 0 s, wait 120 s for the end")
      << "nobody stands by any more";
  EXPECT_EQ(job.state.verdict, "node s is lost: its agent is silent");
}

TEST(Standby, NeedsNoLimitOnceTheOthersHaveLostTheNodeToo) {
  for (const bool agent_first : {true, false}) {
    Scenario job = WithStandby();
    if (agent_first) job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
    EXPECT_EQ(job.Hear(20.2, LostPeer(1, 0)), "wait 1 s for a culprit");
    if (!agent_first) job.Hear(20.5, AgentLost{1, "b", "its connection was lost", At(19)});
    job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
    EXPECT_EQ(job.state.evictions.size(), 1u);
    EXPECT_EQ(job.Headline(agent_first ? 1 : 0),
              "node b is lost, and its ranks with it: its connection was lost, others have lost their connections to "
              "its ranks, and nobody in reach died");
  }
}

// What a program's clean-up met once it had lost a peer.
TEST(Standby, NeedsNoLimitWhereAnErrorFollowedFromALostConnection) {
  for (const bool stands_by : {true, false}) {
    Scenario job = WithStandby();
    if (!stands_by) job.Hear(13, StandbyLeft{"s's"});
    job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
    EXPECT_EQ(job.Hear(20.2, RaisedAfterLoss(1, 0, "ValueError")), "wait 1 s for a culprit");
    job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
    EXPECT_EQ(job.state.evictions.size(), stands_by ? 1u : 0u);
    EXPECT_EQ(job.state.mode, Mode::kStopping);
    EXPECT_FALSE(job.state.fault.traceable) << "it is not the program's";
  }
}

TEST(Standby, ALostConnectionThatADeathExplainsIsNoReasonToEvict) {
  Scenario job = WithStandby();
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  job.Hear(20.2, LostPeer(1, 0));
  EXPECT_EQ(job.Hear(20.4, Killed(1, 1, SIGKILL, {}, 20.1)), "kill 1 after 0 s, announce 2");
  job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
  EXPECT_TRUE(job.state.evictions.empty());
}

TEST(Standby, ANodeThatIsBackIsNotEvicted) {
  Scenario job = WithStandby();
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  job.Hear(20.2, LostPeer(1, 0));
  job.Hear(20.9, AgentBack{1});
  EXPECT_EQ(job.Hear(21.2, SecondaryGraceOver{EpochId(1)}), "kill 1 after 0 s, announce 2");
  EXPECT_TRUE(job.state.evictions.empty());
}

TEST(Standby, ADeathOnANodeInReachIsNoReasonToEvict) {
  Scenario job = WithStandby();
  EXPECT_EQ(job.Hear(20, Killed(1, 3, SIGKILL)), "kill 1 after 0 s, announce 1");
  EXPECT_TRUE(job.state.evictions.empty());
}

TEST(Standby, TakesThePlaceOfANodeThatIsLostWhileTheJobIsRepaired) {
  Scenario job = WithStandby();
  job.Hear(20, Killed(1, 0, SIGKILL));
  job.Hear(20.5, AgentLost{1, "b", "its connection was lost", At(20.4)});
  EXPECT_EQ(job.Hear(31, AgentGone{1, "its agent is silent"}), "announce 2, seat 1, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  EXPECT_EQ(job.Incident(0).findings.back().syndrome, incident::Syndrome::kNodeLost);
  EXPECT_EQ(job.Hear(31, EpochStopped{EpochId(1)}), "choose for 2");
}

TEST(Standby, ThatHasLeftOrDoesNotFitReplacesNobody) {
  Scenario left = WithStandby();
  left.Hear(13, StandbyLeft{"s's"});
  EXPECT_EQ(left.Hear(90, AgentGone{1, "its agent is silent"}), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(left.Hear(91, EpochStopped{EpochId(1)}), "announce 1, finish 3");
  Scenario larger = WithStandby();
  larger.Hear(13, StandbyLeft{"s's"});
  larger.Hear(13, StandbyCame{{"s", 4, "s's"}});
  EXPECT_EQ(larger.Hear(90, AgentGone{1, "its agent is silent"}), "kill 1 after 0 s, wait 120 s for the end");
}

// The machine of c is booted anew, and b is lost before c counts as gone.
TEST(Standby, WithTheNameOfANodeTakesItsPlaceAlone) {
  JobSpec spec;
  spec.standbys = 1;
  Scenario job = OfNodes({"a", "b", "c"}, std::move(spec));
  job.Hear(20, AgentLost{2, "c", "its connection was lost", At(20)});
  job.Hear(24, StandbyCame{{"c", 2, "c booted anew"}});
  EXPECT_EQ(job.Hear(25, AgentLost{1, "b", "its connection was lost", At(25)}), "announce 2");
  EXPECT_FALSE(IsReplaceable(job.state, 1));
  job.Hear(25.2, LostPeer(1, 0, Step(12, 19), 25.1));
  EXPECT_THAT(job.Hear(26.2, SecondaryGraceOver{EpochId(1)}), testing::HasSubstr("seat 2"));
  EXPECT_EQ(job.state.spec.nodes[1].name, "b");
  EXPECT_EQ(job.state.spec.nodes[2].token, "c booted anew");
}

// Agent b has been away for long, and its ranks train on; then the machine of c goes down.
TEST(Standby, TakesThePlaceThatWasLostNearestToTheLostConnections) {
  JobSpec spec;
  spec.standbys = 1;
  for (const double c_lost : {20.0, 20.5}) {
    Scenario job = OfNodes({"a", "b", "c"}, spec);
    job.Hear(12, StandbyCame{{"s", 2, "s's"}});
    job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
    if (c_lost < 20.2) job.Hear(20, AgentLost{2, "c", "its connection was lost", At(20)});
    job.Hear(20.2, LostPeer(1, 0, Step(12, 19), 20.1));
    if (c_lost > 20.2) job.Hear(20.5, AgentLost{2, "c", "its connection was lost", At(20.5)});
    EXPECT_THAT(job.Hear(21.2, SecondaryGraceOver{EpochId(1)}), testing::HasSubstr("seat 2")) << c_lost;
    EXPECT_EQ(job.state.spec.nodes[1].name, "b");
    ASSERT_EQ(job.state.evictions.size(), 1u);
    EXPECT_THAT(job.state.evictions[0].why,
                testing::HasSubstr("of the nodes whose agents are out of reach (b, c) it was lost nearest to when"));
  }
}

// Agent b has been away for long; then the machine of c falls silent, which is noticed 4 s later.
TEST(Standby, WaitsForTheSilenceOfAnotherWhereTheOnlyOneLostWasSoLongBefore) {
  JobSpec spec;
  spec.standbys = 1;
  for (const bool c_falls_silent : {true, false}) {
    Scenario job = OfNodes({"a", "b", "c"}, spec);
    job.Hear(12, StandbyCame{{"s", 2, "s's"}});
    job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
    job.Hear(30, LostPeer(1, 0, Step(12, 29), 30));
    for (const double at : {31, 32, 33, 34})
      EXPECT_EQ(job.Hear(at, SecondaryGraceOver{EpochId(1)}), "wait 1 s for a culprit");
    if (c_falls_silent) job.Hear(34.1, AgentLost{2, "c", "nothing heard for 4 s", At(30), true});
    EXPECT_THAT(job.Hear(35, SecondaryGraceOver{EpochId(1)}), testing::HasSubstr(c_falls_silent ? "seat 2" : "seat 1"));
    ASSERT_EQ(job.state.evictions.size(), 1u);
  }
}

// Agent b was killed, and then agent c; 60 s after the first its starter ends its ranks, while those of c run on.
TEST(Standby, TakesThePlaceWhoseRanksWereEndedByTheirStarter) {
  JobSpec spec;
  spec.standbys = 1;
  Scenario job = OfNodes({"a", "b", "c"}, std::move(spec));
  job.Hear(12, StandbyCame{{"s", 2, "s's"}});
  job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
  job.Hear(53, AgentLost{2, "c", "its connection was lost", At(53)});
  job.Hear(73.4, LostPeer(1, 0, Step(72, 73), 73.3));
  EXPECT_THAT(job.Hear(74.4, SecondaryGraceOver{EpochId(1)}), testing::HasSubstr("seat 1"));
  ASSERT_EQ(job.state.evictions.size(), 1u);
  EXPECT_EQ(job.state.evictions[0].node.name, "b");
  EXPECT_THAT(job.state.evictions[0].why,
              testing::HasSubstr("of the nodes whose agents are out of reach (b, c) its ranks were to be ended nearest "
                                 "to when that happened: a starter does so 60 s after it has lost its agent"));
}

// Where several are out of reach, a moment alone proves less; but a step that ended since proves that their ranks
// lived.
TEST(Standby, OfSeveralThatAreLostTheOthersAreNamedBesideItUnlessTheySteppedOn) {
  JobSpec spec;
  spec.standbys = 1;
  for (const bool gone : {true, false}) {
    Scenario job = OfNodes({"a", "b", "c"}, spec);
    job.Hear(12, StandbyCame{{"s", 2, "s's"}});
    job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
    job.Hear(20, AgentLost{2, "c", "its connection was lost", At(20)});
    if (!gone) job.Hear(20.2, LostPeer(1, 0, Step(12, 13), 20.1));
    gone ? job.Hear(30, AgentGone{2, "its agent is silent"}) : job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
    const incident::Finding& lead = incident::Lead(job.state.incidents.back());
    EXPECT_EQ(lead.suspects.front().name, "c");
    ASSERT_EQ(lead.ambiguous_with.size(), 1u) << gone;
    EXPECT_EQ(lead.ambiguous_with.front().name, "b");
    EXPECT_THAT(incident::Headline(lead), testing::HasSubstr("(or it is node b)"));
    job.Hear(31, AgentBack{1});
    EXPECT_TRUE(incident::Lead(job.state.incidents.back()).ambiguous_with.empty()) << "it is back";
  }
  Scenario job = OfNodes({"a", "b", "c"}, spec);
  job.Hear(12, StandbyCame{{"s", 2, "s's"}});
  job.Hear(13, AgentLost{1, "b", "its connection was lost", At(13)});
  job.Hear(20, AgentLost{2, "c", "its connection was lost", At(20)});
  job.Hear(20.2, LostPeer(1, 0, Step(12, 19), 20.1));
  job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
  EXPECT_TRUE(incident::Lead(job.state.incidents.back()).ambiguous_with.empty());
}

TEST(Standby, WithTheNameOfTheLostNodeIsPreferred) {
  Scenario job = WithStandby();
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  job.Hear(21, StandbyCame{{"b", 2, "b booted anew"}});
  job.Hear(30, AgentGone{1, "its agent is silent"});
  EXPECT_EQ(job.state.spec.nodes[1].token, "b booted anew");
  ASSERT_EQ(job.state.standbys.size(), 1u);
  EXPECT_EQ(job.state.standbys[0].name, "s");
}

// What its inspection says of the machine of standby `name`.
Alerted OfTheStandby(const std::string& name, double since, bool cleared = false,
                     AlertClass kind = AlertClass::kMachine) {
  return {-1, "disk_full", kind, "/run", "0 % is free", At(since), cleared, name + "'s"};
}

TEST(Standby, ThatSaysItIsBrokenIsPassedOver) {
  Scenario job = WithStandby();
  job.Hear(13, StandbyCame{{"t", 2, "t's"}});
  job.Hear(14, OfTheStandby("s", 14));
  const Json status = StatusReport(job.state, Observed{}, job.state.now);
  EXPECT_EQ(status["standbys"], ParseJson(R"(["s", "t"])"));
  EXPECT_EQ(status["unfit_standbys"], ParseJson(R"([{"name": "s", "why": "disk_full of /run: 0 % is free"}])"));
  job.Hear(30, AgentGone{1, "its agent is silent"});
  EXPECT_EQ(job.state.spec.nodes[1].name, "t");
  ASSERT_EQ(job.state.standbys.size(), 1u);
  EXPECT_EQ(job.state.standbys[0].name, "s");
}

TEST(Standby, ThatSaysItIsBrokenIsBetterThanTheEndOfTheJob) {
  Scenario job = WithStandby();
  job.Hear(14, OfTheStandby("s", 14));
  EXPECT_TRUE(IsReplaceable(job.state, 1));
  EXPECT_THAT(job.Hear(30, AgentGone{1, "its agent is silent"}), testing::HasSubstr("seat 1"));
  EXPECT_EQ(job.state.spec.nodes[1].name, "s");
  EXPECT_TRUE(job.state.alerts_of_standbys.empty()) << "it says it again as a node";
}

TEST(Standby, IsFitAgainWhenItSaysSo) {
  Scenario job = WithStandby();
  job.Hear(14, OfTheStandby("s", 14, false, AlertClass::kSoftware));
  EXPECT_EQ(WhyUnfit(job.state, {"s", 2, "s's"}), "") << "of what would not have a node evicted";
  job.Hear(15, OfTheStandby("s", 15));
  EXPECT_NE(WhyUnfit(job.state, {"s", 2, "s's"}), "");
  job.Hear(20, Alerted{1, "gpu_xid", AlertClass::kMachine, "gpu3", "Xid 79", At(20)});
  EXPECT_EQ(job.state.mode, Mode::kRunning) << "a broken machine in place of a broken machine";
  EXPECT_THAT(job.Hear(21, OfTheStandby("s", 15, true)), testing::HasSubstr("kill 1"));
  EXPECT_EQ(WhyUnfit(job.state, {"s", 2, "s's"}), "");
  job.Hear(22, EpochStopped{EpochId(1)});
  EXPECT_EQ(job.state.spec.nodes[1].name, "s");
}

TEST(Standby, ThatComesAnewSaysAnewWhatIsWrongWithIt) {
  Scenario job = WithStandby();
  job.Hear(14, OfTheStandby("s", 14));
  job.Hear(15, StandbyCame{{"s", 2, "s's"}});
  EXPECT_EQ(WhyUnfit(job.state, {"s", 2, "s's"}), "");
  job.Hear(16, OfTheStandby("s", 14));
  job.Hear(17, WatcherGone{At(15)});
  EXPECT_TRUE(job.state.alerts_of_standbys.empty());
  const int64_t ignored = job.state.ignored_events;
  job.Hear(18, OfTheStandby("s", 14));
  EXPECT_EQ(job.state.ignored_events, ignored + 1) << "it is none";
}

// It was power that went: nobody heard of it until the restart was under way.
TEST(Standby, TheLossOfANodeExplainsALostConnectionThatNothingDid) {
  for (const bool old_journal : {false, true}) {
    Scenario job = WithStandby();
    job.Hear(20, LostPeer(1, 0, Step(11, 19), 20));
    EXPECT_EQ(job.Hear(21, SecondaryGraceOver{EpochId(1)}), "kill 1 after 0 s, announce 1");
    job.Hear(24, AgentLost{1, "b", "nothing heard for 4 s", At(24)});
    EXPECT_THAT(job.Hear(34, AgentGone{1, "its agent is silent", !old_journal}), testing::HasSubstr("seat 1"));
    EXPECT_THAT(job.Headline(0), testing::HasSubstr(old_journal ? "rank 0 ended" : "node b is lost"));
    EXPECT_EQ(job.state.fault.plan.symptom, old_journal ? Symptom::kCrash : Symptom::kNodeLost);
    EXPECT_EQ(job.Hear(35, EpochStopped{EpochId(1)}), "choose for 2");
  }
}

TEST(Standby, TheLossOfANodeThatEndsTheJobExplainsALostConnectionToo) {
  Scenario job = WithStandby();
  job.Hear(13, StandbyLeft{"s's"});
  job.Hear(20, LostPeer(1, 0, Step(11, 19), 20));
  job.Hear(21, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(job.Hear(90, AgentGone{1, "its agent is silent", true}), "wait 120 s for the end");
  EXPECT_THAT(job.Headline(0), testing::HasSubstr("node b is lost"));
  EXPECT_EQ(job.state.exit_code, kExitLost);
}

TEST(Standby, TheLossOfANodeDoesNotExplainADeath) {
  Scenario job = WithStandby();
  job.Hear(20, LostPeer(1, 0, Step(11, 19), 20));
  job.Hear(21, SecondaryGraceOver{EpochId(1)});
  job.Hear(21.5, Killed(1, 1, SIGKILL, {}, 19.5));
  job.Hear(24, AgentLost{1, "b", "nothing heard for 4 s", At(24)});
  job.Hear(34, AgentGone{1, "its agent is silent", true});
  EXPECT_THAT(job.Headline(0), testing::HasSubstr("rank 1 was killed"));
}

TEST(Standby, IsNotTouchedByWhoOnlyObserves) {
  Scenario job = WithStandby(OnlyObserved());
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  job.Hear(20.5, LostPeer(1, 0));
  EXPECT_TRUE(job.state.evictions.empty());
  EXPECT_EQ(job.state.spec.nodes[1].name, "b");
}

TEST(Standby, IsForgottenWithTheCoordinatorThatItJoined) {
  Scenario job = WithStandby();
  job.Hear(20, WatcherGone{At(15)});
  EXPECT_TRUE(job.state.standbys.empty());
  job.Hear(21, StandbyCame{{"s", 2, "s's"}});
  job.Hear(22, StandbyCame{{"s", 2, "s's"}});
  EXPECT_EQ(job.state.standbys.size(), 1u);
}

}  // namespace
}  // namespace lockstep::control
