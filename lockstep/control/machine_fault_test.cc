// What becomes of a fault: crashes, exceptions, lost connections, ranks that are slow.
#include <gmock/gmock.h>
#include <signal.h>

#include "lockstep/control/four_ranks.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/report.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

TEST(Crash, RestartsAllRanksFromTheNewestCheckpoint) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(13, Killed(1, 2, SIGKILL, Step(11, 12.5), 12.9)), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  EXPECT_EQ(job.Hear(13.5, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.Hear(14, RestoreChosen{EpochId(2), Checkpoint(1, 9), {}}), "publish 2 1/9, spawn 2, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kSpawning);
  job.ComeUp(15);
  EXPECT_TRUE(job.state.recomputing);
  EXPECT_EQ(job.Hear(16, ProgressSeen{EpochId(2), Step(10, 16)}), "");
  EXPECT_EQ(job.Hear(17.1, CaughtUp{EpochId(2), Step(11, 17)}), "announce 1");
  EXPECT_FALSE(job.state.open.has_value());
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 12");
  EXPECT_EQ(job.Incident(0).steps_lost, 2);
  EXPECT_EQ(job.Incident(0).actions.front().text, "restart of all 4 ranks in epoch 2 from step 9");
}

// Phases of that incident: in flight 12.5-12.9 and again 15-17, unnoticed 12.9-13, judged 0, repaired 13-15.
TEST(Crash, EverySecondHasItsPhase) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL, Step(11, 12.5), 12.9));
  job.Restart(14, Checkpoint(1, 9));
  job.ComeUp(15);
  job.Hear(17.1, CaughtUp{EpochId(2), Step(11, 17)});
  const incident::Phases phases = WithPhases(job.state, 0, At(20)).phases;
  EXPECT_NEAR(phases.detect.value, 0.1, 1e-9);
  EXPECT_NEAR(phases.decide.value, 0, 1e-9);
  EXPECT_NEAR(phases.restart.value, 2, 1e-9);
  EXPECT_NEAR(phases.recompute.value, 0.4 + 2, 1e-9);
  EXPECT_NEAR(Lost(job.state, Phase::kProductive, 20), (12.5 - 2) + (20 - 17), 1e-9);
}

TEST(Crash, WithNothingToRecomputeClosesAtTheFirstNewStep) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  EXPECT_FALSE(job.state.recomputing);
  EXPECT_EQ(job.state.ledger.Current(), Phase::kProductive);
  EXPECT_TRUE(job.state.open.has_value());
  EXPECT_EQ(job.Hear(16, ProgressSeen{EpochId(2), Step(11, 16)}), "announce 1");
  EXPECT_EQ(job.Incident(0).steps_lost, 0);
}

TEST(Crash, WithoutACheckpointBeginsAfresh) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Restart(14, std::nullopt);
  EXPECT_EQ(Text(job.commands), "publish 2 none, spawn 2, announce 1");
  EXPECT_EQ(job.Incident(0).steps_lost, 11);
}

TEST(Crash, RejectedCheckpointsJoinTheIncident) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Hear(14, EpochStopped{EpochId(1)});
  job.Hear(14, RestoreChosen{EpochId(2), Checkpoint(1, 9), {"rank 1, step 10: CRC 1 instead of 2"}});
  EXPECT_EQ(job.Incident(0).findings.back().syndrome, incident::Syndrome::kCorruptCheckpoint);
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 was killed"));
}

// However certain: who is slow is named, and nothing else happens; a crash meanwhile is repaired and leads.
TEST(Slowness, IsNamedAndNothingIsDone) {
  Scenario job = Training();
  Suspected slow = Suspect(1, 3, true, 13);
  slow.finding.syndrome = incident::Syndrome::kNonCommunicationSlow;
  EXPECT_EQ(job.Hear(13, slow), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_THAT(job.Incident(0).actions.front().text, HasSubstr("named; the job goes on: rank 3 is slow"));
  EXPECT_EQ(job.Hear(13.5, Killed(1, 2, SIGKILL, Step(10, 12), 13.2)), "kill 1 after 0 s, announce 1");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 was killed"));
}

// What was only named is no culprit: the death behind a lost connection is waited for, and leads.
TEST(Slowness, IsNoCulpritOfALostConnection) {
  Scenario job = Training();
  Suspected slow = Suspect(1, 3, true, 13);
  slow.finding.syndrome = incident::Syndrome::kNonCommunicationSlow;
  job.Hear(13, slow);
  EXPECT_EQ(job.Hear(13.2, LostPeer(1, 0, {}, 13.15)), "wait 1 s for a culprit");
  EXPECT_EQ(job.Hear(13.3, Killed(1, 2, SIGKILL, {}, 13.1)), "kill 1 after 0 s, announce 1");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 was killed"));
}

TEST(Crash, LaterDeathsAreConsequencesAndEarlierOnesLead) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGABRT, {}, 12.8));
  EXPECT_EQ(job.Hear(13.1, Killed(1, 3, SIGABRT, {}, 12.9)), "");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2"));
  EXPECT_EQ(job.Incident(0).findings.front().evidence.back(),
            "rank 3 left as a consequence: SIGABRT (signal 6) in step 11");
  EXPECT_EQ(job.Hear(13.2, Killed(1, 1, SIGKILL, {}, 12.7)), "");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 1"));
  EXPECT_EQ(job.Hear(13.3, Killed(1, 0, SIGKILL, {}, 13.2)), "") << "our own kill";
  EXPECT_NEAR(WithPhases(job.state, 0, At(14)).phases.detect.value, 0.3, 1e-9);
}

TEST(Crash, AnotherBeforeTheRepairIsDoneIsAnIncidentOfItsOwn) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Restart(14, Checkpoint(1, 8));
  job.ComeUp(15);
  EXPECT_EQ(job.Hear(16, Killed(2, 1, SIGKILL, Step(9, 15.5), 15.9)), "kill 2 after 0 s, announce 1, announce 2");
  EXPECT_EQ(job.state.incidents.size(), 2u);
  EXPECT_NE(job.Incident(0).closed.value, 0);
  job.Restart(17, Checkpoint(2, 9));
  EXPECT_EQ(job.Incident(1).steps_lost, 0);
  EXPECT_EQ(job.Incident(0).steps_lost, 2);
}

TEST(LostConnection, WaitsForTheDeathBehindIt) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(13, LostPeer(1, 0, {}, 12.95)), "wait 1 s for a culprit");
  EXPECT_EQ(job.state.mode, Mode::kConfirming);
  EXPECT_EQ(job.Hear(13.01, LostPeer(1, 3, {}, 12.96)), "");
  EXPECT_EQ(job.Hear(13.02, Killed(1, 2, SIGKILL, {}, 12.9)), "kill 1 after 0 s, announce 1");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 was killed"));
  EXPECT_EQ(job.Hear(14, SecondaryGraceOver{EpochId(1)}), "") << "too late to matter";
  EXPECT_EQ(job.state.ignored_events, 1);
}

TEST(LostConnection, WithoutADeathTheFirstLossIsNamedAndTheJobRestarts) {
  Scenario job = Training();
  job.Hear(13, LostPeer(1, 0, {}, 12.95));
  job.Hear(13.01, LostPeer(1, 3, {}, 12.90));
  EXPECT_EQ(job.Hear(14, SecondaryGraceOver{EpochId(1)}), "kill 1 after 0 s, announce 1");
  const incident::Finding& lead = Lead(job.Incident(0));
  EXPECT_EQ(lead.syndrome, incident::Syndrome::kExit);
  EXPECT_EQ(lead.suspects, std::vector{incident::SuspectRank(RankId(3))});
  EXPECT_EQ(lead.ambiguous_with, std::vector{incident::SuspectRank(RankId(0))});
  EXPECT_THAT(lead.evidence.back(), HasSubstr("secondary"));
  EXPECT_NEAR(WithPhases(job.state, 0, At(14)).phases.decide.value, 1, 1e-9);
}

// As of training that goes on within the `except` that had caught a lost peer's error.
TEST(LostConnection, WhatWasRaisedAfterOneIsTheProgramsUnlessADeathIsBehindIt) {
  Scenario job(FourRanks());
  job.ComeUp(2);
  job.See(10, 12);
  for (const double at : {13.0, 23.0}) {
    const uint64_t epoch = job.state.epoch.value();
    job.Hear(at, RaisedAfterLoss(epoch, 2, "ValueError", Step(10, 12), at - 0.1));
    EXPECT_EQ(job.state.mode, Mode::kConfirming);
    job.Hear(at + 0.01, LostPeer(epoch, 0, Step(10, 12), at - 0.05));
    job.Hear(at + 1, SecondaryGraceOver{EpochId(epoch)});
    const incident::Finding& lead = incident::Lead(job.Incident(epoch - 1));
    EXPECT_EQ(lead.suspects, std::vector{incident::SuspectRank(RankId(2))});
    EXPECT_TRUE(lead.ambiguous_with.empty());
    EXPECT_EQ(lead.evidence.back(), "rank 0 lost its connection as a consequence");
    if (epoch > 1) break;
    job.Restart(14.5, Checkpoint(1, 10));
    job.ComeUp(15);
  }
  EXPECT_EQ(job.state.verdict,
            "ValueError at train.py:41 in forward struck twice at step 11: this is in the program, not in the machine: "
            "it went wrong");
}

TEST(LostConnection, WhatWasRaisedAfterOneFollowsFromTheDeathBehindIt) {
  Scenario job(FourRanks());
  job.ComeUp(2);
  job.Hear(13, RaisedAfterLoss(1, 2, "ValueError", {}, 12.9));
  job.Hear(13.01, Killed(1, 1, SIGKILL, {}, 12.91));
  EXPECT_EQ(incident::Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(1))});
  Scenario early(FourRanks());  // the death is heard first
  early.ComeUp(2);
  early.Hear(13, Killed(1, 1, SIGKILL, {}, 12.91));
  early.Hear(13.01, RaisedAfterLoss(1, 2, "ValueError", {}, 12.9));
  EXPECT_EQ(incident::Lead(early.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(1))});
}

TEST(LostConnection, WhatWasRaisedAfterAnEarlierOneFollowsFromThat) {
  Scenario job(FourRanks());
  job.ComeUp(2);
  job.Hear(13, LostPeer(1, 0, {}, 12.9));
  job.Hear(13.01, RaisedAfterLoss(1, 2, "ValueError", {}, 12.95));
  job.Hear(14, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(incident::Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(0))});
  EXPECT_EQ(incident::Lead(job.Incident(0)).ambiguous_with, std::vector{incident::SuspectRank(RankId(2))});
  EXPECT_FALSE(job.state.fault.traceable);
}

TEST(LostConnection, WhoLeftInPeaceBeforeIsNamed) {
  Scenario job = Training();
  job.Hear(12.95, InItsStep(Exit(1, 2, {0, 0}, {}, 12.9), 13));
  job.Hear(13, InItsStep(LostPeer(1, 0, {}, 12.95), 13));
  job.Hear(14, SecondaryGraceOver{EpochId(1)});
  const incident::Finding& lead = Lead(job.Incident(0));
  EXPECT_EQ(lead.suspects, std::vector{incident::SuspectRank(RankId(2))});
  EXPECT_TRUE(lead.ambiguous_with.empty());
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 ended: exit code 0 in step 14, while"));
  EXPECT_EQ(lead.evidence[1], "rank 0 lost its connection as a consequence");
  EXPECT_THAT(lead.evidence.back(), HasSubstr("RuntimeError"));
}

TEST(LostConnection, WhoLeftLongBeforeOrAfterIsNotTheCause) {
  for (const double left : {1.0, 13.96}) {
    Scenario job = Training();
    if (left < 13) job.Hear(left + 9, InItsStep(Exit(1, 2, {0, 0}, {}, left), 3));
    job.Hear(13, InItsStep(LostPeer(1, 0, {}, 12.95), 13));
    if (left > 13) job.Hear(13.97, Exit(1, 2, {0, 0}, {}, left));
    job.Hear(14, SecondaryGraceOver{EpochId(1)});
    EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(0))}) << left;
  }
}

// As a restartable function loses it, after a while, or a forward pass that is long.
TEST(LostConnection, WhoLeftInTheStepThatTheOthersAreStillInIsNamedHoweverLate) {
  for (const int64_t step : {-1, 13}) {
    Scenario job = Training();
    job.Hear(12.95, InItsStep(Exit(1, 2, {0, 0}, {}, 12.9), std::max(step - 1, int64_t{-1})));
    job.Hear(40, InItsStep(LostPeer(1, 0, {}, 39.95), step));
    job.Hear(41, SecondaryGraceOver{EpochId(1)});
    EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(2))}) << step;
  }
}

TEST(LostConnection, OfAJobThatTellsNoStepsIsOfWhoLeftSoonBefore) {
  for (const double lost : {10.0, 14.0}) {
    Scenario job(FourRanks());
    job.Hear(2, EpochSpawned{EpochId(1)});
    job.Hear(3, Exit(1, 2, {0, 0}, {}, 3));
    job.Hear(lost, LostPeer(1, 0, {}, lost));
    job.Hear(lost + 1, SecondaryGraceOver{EpochId(1)});
    const int named = lost < 13 ? 2 : 0;
    EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(named))}) << lost;
  }
}

// The kernel closes a process's connections before it says that the process has ended, and Python takes longer.
TEST(LostConnection, WhoWasLeavingInPeaceIsNamed) {
  Scenario job = Training();
  job.Hear(13, LostPeer(1, 0, {}, 12.95));
  EXPECT_EQ(job.Hear(13.9, Exit(1, 2, {0, 0}, {}, 13.85)), "");
  EXPECT_EQ(job.Hear(14, SecondaryGraceOver{EpochId(1)}), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(2))});
}

void LeaveEarly(Scenario& job, double at, Progress progress = {}) {
  job.Hear(at, LostPeer(job.state.epoch.value(), 0, progress, at));
  job.Hear(at + 0.1, Exit(job.state.epoch.value(), 2, {0, 0}, {}, at + 0.1));
  job.Hear(at + 1, SecondaryGraceOver{job.state.epoch});
}

TEST(EarlyEnd, TwiceAtOneStepEndsTheJob) {
  Scenario job = Training();
  LeaveEarly(job, 13, Step(16, 12.5));
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  job.Restart(15, Checkpoint(1, 16));
  job.ComeUp(16);
  LeaveEarly(job, 17);
  EXPECT_EQ(job.state.mode, Mode::kFinishing);
  EXPECT_EQ(job.state.verdict,
            "rank 2: exit code 0, while others still trained, struck twice at step 17: this is in the program, not in "
            "the machine");
}

TEST(EarlyEnd, AtAnotherStepIsNoRepeat) {
  Scenario job = Training();
  LeaveEarly(job, 13, Step(16, 12.5));
  job.Restart(15, Checkpoint(1, 16));
  job.ComeUp(16);
  LeaveEarly(job, 30, Step(19, 29));
  EXPECT_EQ(job.state.mode, Mode::kStopping);
}

TEST(EarlyEnd, TwiceInARowEndsAJobThatToldNoStep) {
  Scenario job(FourRanks());
  job.Hear(2, EpochSpawned{EpochId(1)});
  LeaveEarly(job, 3);
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  job.Restart(5, std::nullopt);
  job.Hear(6, EpochSpawned{EpochId(2)});
  LeaveEarly(job, 7);
  EXPECT_THAT(job.state.verdict, HasSubstr("rank 2: exit code 0, while others still trained, struck twice in a row: "));
}

TEST(EarlyEnd, RestartsAsOftenAsWasAskedFor) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 5;
  spec.restarts_without_steps = true;
  Scenario job(spec);
  for (double at = 2; job.state.restarts < 5; at += 10) {
    job.Hear(at, EpochSpawned{job.state.epoch});
    LeaveEarly(job, at + 1);
    ASSERT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
    job.Restart(at + 3, std::nullopt);
  }
  job.Hear(100, EpochSpawned{EpochId(6)});
  LeaveEarly(job, 101);
  EXPECT_THAT(job.state.verdict, HasSubstr("all 5 restarts that were allowed are used up"));
}

// Named as outside the collective in which the others wait, and not for certain.
Suspected Outside(std::vector<int> ranks) {
  Suspected event = Suspect(1, ranks.front(), false, 12);
  event.finding.syndrome = incident::Syndrome::kNotEntered;
  event.finding.suspects.clear();
  for (const int rank : ranks) event.finding.suspects.push_back(incident::SuspectRank(RankId(rank)));
  event.finding.evidence = {"it is in train.py:7 in nap, 0.00 of a core"};
  return event;
}

// All ranks but 1 give up at 20 s.
std::string TimeOut(Scenario& job) {
  for (const int rank : {0, 2, 3}) job.Hear(20, TimedOut(1, rank, {}, 19.95));
  return job.Hear(21, SecondaryGraceOver{EpochId(1)});
}

// A hang that was named rightly stays the cause, with its own beginning, though it was not certain.
TEST(CollectiveTimeout, WhoeverTheOthersWaitedForLeads) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1}));
  EXPECT_EQ(TimeOut(job), "keep stacks of 1, announce 1");
  const incident::Finding& lead = Lead(job.Incident(0));
  EXPECT_EQ(lead.syndrome, incident::Syndrome::kNotEntered);
  EXPECT_EQ(lead.suspects, std::vector{incident::SuspectRank(RankId(1))});
  EXPECT_TRUE(lead.ambiguous_with.empty());
  EXPECT_TRUE(lead.certain);
  EXPECT_EQ(job.Incident(0).findings.size(), 1u);
  EXPECT_EQ(lead.evidence[1], "ranks 0, 2-3 waited until a collective timed out");
  EXPECT_EQ(job.Hear(21.5, StacksKept{EpochId(1), "x"}), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(job.state.fault.plan.symptom, Symptom::kHang);
  const incident::Phases phases = WithPhases(job.state, 0, At(21.5)).phases;
  EXPECT_NEAR(phases.detect.value, 8, 1e-9);
  EXPECT_NEAR(phases.recompute.value, 0, 1e-9);
}

TEST(CollectiveTimeout, WhoTimedOutItselfIsNotToBlame) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1, 2}));
  TimeOut(job);
  EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(1))});
}

// It came too late, and met the connections that the others had closed: nobody is left whose stack could be kept.
TEST(CollectiveTimeout, WhoCameTooLateLeads) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1}));
  for (const int rank : {0, 2, 3}) job.Hear(20, TimedOut(1, rank, {}, 19.95));
  EXPECT_EQ(job.Hear(20.5, LostPeer(1, 1, {}, 20.45)), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(1))});
}

TEST(CollectiveTimeout, WithNobodyNamedItMayBeWhoIsLeft) {
  Scenario job = Training();
  EXPECT_EQ(TimeOut(job), "keep stacks of 1, announce 1");
  const incident::Finding& lead = Lead(job.Incident(0));
  EXPECT_EQ(lead.syndrome, incident::Syndrome::kStalled);
  EXPECT_TRUE(lead.suspects.empty());
  EXPECT_EQ(lead.ambiguous_with, std::vector{incident::SuspectRank(RankId(1))});
}

TEST(CollectiveTimeout, OfOneRankNamesNobody) {
  Scenario job = Training();
  job.Hear(20, TimedOut(1, 0, {}, 19.95));
  job.Hear(21, SecondaryGraceOver{EpochId(1)});
  EXPECT_TRUE(Lead(job.Incident(0)).suspects.empty());
  EXPECT_TRUE(Lead(job.Incident(0)).ambiguous_with.empty());
}

// Somebody went: an evaluation, named or not, has no part in it.
TEST(CollectiveTimeout, IsNoConnectionThatWasReset) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1}));
  job.Hear(20, LostPeer(1, 0, {}, 19.95));
  EXPECT_EQ(job.Hear(21, SecondaryGraceOver{EpochId(1)}), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(0))});
}

TEST(CollectiveTimeout, ADeathLeadsAllTheSame) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1}));
  job.Hear(20, TimedOut(1, 0, {}, 19.95));
  EXPECT_EQ(job.Hear(20.5, Killed(1, 3, SIGKILL, {}, 19.9)), "kill 1 after 0 s, announce 1");
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 3 was killed"));
}

TEST(CollectiveTimeout, WhoLeftInPeaceBeforeLeadsAllTheSame) {
  Scenario job = Training();
  job.Hear(14.6, Outside({1}));
  job.Hear(15, InItsStep(Exit(1, 2, {0, 0}, {}, 15), 10));
  job.Hear(25, InItsStep(TimedOut(1, 0, {}, 25), 10));
  job.Hear(26, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(2))});
}

// Who waits for a machine that is out of reach times out, too.
TEST(CollectiveTimeout, NamesNobodyWhileAnAgentIsOutOfReach) {
  Scenario job = OfNodes({"a", "b"}, {});
  job.Hear(14.6, Outside({1}));
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(20)});
  job.Hear(20.2, TimedOut(1, 0, {}, 20.1));
  job.Hear(21.2, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(Lead(job.Incident(0)).syndrome, incident::Syndrome::kExit);
}

TEST(LostConnection, OfEverybodyNeedsNoWait) {
  Scenario job = Training();
  for (int rank = 0; rank < 3; ++rank) job.Hear(13, LostPeer(1, rank));
  EXPECT_EQ(job.Hear(13, LostPeer(1, 3)), "kill 1 after 0 s, announce 1");
}

TEST(LostConnection, IsNeverAUserErrorHoweverOftenItStrikes) {
  Scenario job = Training();
  job.Hear(13, LostPeer(1, 0));
  job.Hear(14, SecondaryGraceOver{EpochId(1)});
  job.Restart(15, Checkpoint(1, 10));
  job.ComeUp(16);
  job.Hear(17, LostPeer(2, 0));
  EXPECT_EQ(job.Hear(18, SecondaryGraceOver{EpochId(2)}), "kill 2 after 0 s, announce 2");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
}

TEST(Exception, TwiceAtOneStepEndsTheJob) {
  Scenario job = Training();
  job.Hear(13, Raised(1, 1, "ValueError", Step(16, 12.5)));
  job.Restart(14, Checkpoint(1, 16));
  job.ComeUp(15);
  EXPECT_EQ(job.Hear(16, Raised(2, 3, "ValueError")), "kill 2 after 0 s, wait 120 s for the end, announce 1");
  EXPECT_EQ(job.Hear(17, EpochStopped{EpochId(2)}), "announce 2, finish 1");
  EXPECT_EQ(job.state.verdict,
            "ValueError at train.py:41 in forward struck twice at step 17: this is in the program, not in the machine: "
            "it went wrong");
}

TEST(Exception, AtTheNextStepIsARepeatThatNamesBoth) {
  Scenario job = Training();
  job.Hear(13, Raised(1, 1, "ValueError", Step(16, 12.5)));
  job.Restart(14, Checkpoint(1, 16));
  job.ComeUp(15);
  job.Hear(16, Raised(2, 3, "ValueError", Step(17, 15.5)));
  EXPECT_THAT(job.state.fault.program_error, HasSubstr("struck at step 17 and at step 18: this is in the program"));
}

// What is known of the slowest rank of other nodes is older than the exception, once by more and once by less.
TEST(Exception, AtOneStepOfItsRankIsARepeatWhateverIsKnownOfTheOthers) {
  Scenario job = Training();
  job.Hear(13, InItsStep(Raised(1, 1, "ValueError", Step(12, 12.5)), 16));
  EXPECT_EQ(job.Headline(0), "rank 1 ended: ValueError at train.py:41 in forward in step 17: it went wrong");
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  job.Hear(16, InItsStep(Raised(2, 3, "ValueError", Step(15, 15.5)), 16));
  EXPECT_THAT(job.state.fault.program_error, HasSubstr("struck twice at step 17"));
}

TEST(Exception, AtAnotherStepOfItsRankIsNoRepeatThoughNoMoreIsKnownOfTheOthers) {
  Scenario job = Training();
  job.Hear(13, InItsStep(Raised(1, 1, "ValueError", Step(12, 12.5)), 12));
  job.Restart(14, Checkpoint(1, 10));
  job.ComeUp(15);
  job.Hear(16, InItsStep(Raised(2, 1, "ValueError", Step(12, 15.5)), 19));
  EXPECT_EQ(job.state.fault.program_error, "");
  EXPECT_EQ(job.state.mode, Mode::kStopping);
}

// Two ranks raise the same, and the first to do so is heard of last; or it has been killed while it unwound.
TEST(Exception, OfTwoRanksInOneEpochIsNoRepeat) {
  for (const ExitStatus status : {ExitStatus{1, 0}, ExitStatus{0, SIGKILL}}) {
    Scenario job = Training();
    job.Hear(13, Raised(1, 1, "ValueError", Step(16, 12.5), 12.9));
    RankExited first = Raised(1, 3, "ValueError", {}, 12.8);
    first.status = status;
    job.Hear(13.1, first);
    EXPECT_EQ(job.state.mode, Mode::kStopping);
    EXPECT_EQ(job.state.fault.program_error, "");
    EXPECT_EQ(job.Headline(0), "rank 3 ended: ValueError at train.py:41 in forward in step 17: it went wrong");
    job.Restart(14, Checkpoint(1, 16));
    job.ComeUp(15);
    job.Hear(16, Raised(2, 1, "ValueError", {}, 15.9));
    EXPECT_THAT(job.state.fault.program_error, HasSubstr("struck twice at step 17")) << "of another epoch";
    job.Hear(16.1, Raised(2, 3, "ValueError", {}, 15.8));
    EXPECT_THAT(job.state.fault.program_error, HasSubstr("struck twice at step 17"));
  }
}

TEST(Exception, AtAnotherStepOrOfAnotherKindIsNoRepeat) {
  Scenario job = Training();
  job.Hear(13, Raised(1, 1, "ValueError", Step(16, 12.5)));
  job.Restart(14, Checkpoint(1, 16));
  job.ComeUp(15);
  job.Hear(16, Raised(2, 1, "MemoryError"));
  EXPECT_EQ(job.state.mode, Mode::kStopping);
  job.Restart(17, Checkpoint(1, 16));
  job.ComeUp(18);
  job.Hear(19, Raised(3, 1, "MemoryError", Step(30, 18.9)));
  EXPECT_EQ(job.state.mode, Mode::kStopping);
}

TEST(Exception, BeforeTheFirstStepEndsTheJobAtOnce) {
  Scenario job(FourRanks());
  job.Hear(2, EpochSpawned{EpochId(1)});
  RankExited failed = Raised(1, 0, "ModuleNotFoundError");
  failed.exception->message = "No module named 'torhc'";
  EXPECT_EQ(job.Hear(3, LostPeer(1, 1)), "wait 1 s for a culprit");
  EXPECT_EQ(job.Hear(3, failed), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(4, EpochStopped{EpochId(1)}), "announce 1, finish 1");
  EXPECT_EQ(job.state.verdict,
            "rank 0 failed: ModuleNotFoundError at train.py:41 in forward before the first step was told: No module "
            "named 'torhc': this is in the program, not in the machine");
}

TEST(Exception, InTheLoopBeforeItsFirstStepSaysSo) {
  Scenario job(FourRanks());
  job.ComeUp(2);
  job.Hear(3, Raised(1, 0, "ValueError"));
  EXPECT_EQ(job.state.verdict,
            "rank 0 failed before the first step: ValueError at train.py:41 in forward in step 0: it went wrong: this "
            "is in the program, not in the machine");
}

TEST(Exception, WithoutTextEndsInNoColon) {
  Scenario job = Training();
  RankExited failed = Raised(1, 0, "MemoryError");
  failed.exception->message = "";
  job.Hear(13, failed);
  EXPECT_EQ(job.Headline(0), "rank 0 ended: MemoryError at train.py:41 in forward in step 11");
}

}  // namespace
}  // namespace lockstep::control
