#include "lockstep/control/machine.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/control/report.h"
#include "lockstep/control/scenario.h"
#include "lockstep/control/story.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

JobSpec FourRanks() {
  JobSpec spec;
  spec.ranks = 4;
  return spec;
}

// Epoch 1 began at 2 s and finished step 10 at 12 s.
Scenario Training(JobSpec spec = FourRanks()) {
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.See(10, 12);
  return job;
}

JobSpec Observed() {
  JobSpec spec = FourRanks();
  spec.observe_only = true;
  return spec;
}

double Lost(const State& state, Phase phase, double now) {
  return ToSeconds(state.ledger.Total(At(now))[static_cast<size_t>(phase)]).value;
}

TEST(Life, StartsRunsAndCompletes) {
  State state;
  EXPECT_EQ(Text(Step(state, {At(1), At(1), JobStarted{FourRanks()}})), "publish 1 none, spawn 1");
  Scenario job(FourRanks());
  EXPECT_EQ(job.state.mode, Mode::kSpawning);
  EXPECT_EQ(job.Hear(2, EpochSpawned{EpochId(1)}), "");
  EXPECT_EQ(job.state.mode, Mode::kStarting);
  EXPECT_EQ(job.Hear(3, LoopBegan{EpochId(1), At(2.5), std::nullopt}), "");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(job.Hear(10, Exit(1, rank, {})), "");
  EXPECT_EQ(job.Hear(10, Exit(1, 3, {})), "kill 1 after 0 s, wait 120 s for the end")
      << "whatever the ranks left behind goes too";
  EXPECT_EQ(job.Hear(11, EpochStopped{EpochId(1)}), "finish 0");
  EXPECT_EQ(job.state.verdict, "completed");
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kStartup, 99), 1.5);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kShutdown, 99), 1);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kProductive, 99), 7.5);
}

// Four ranks, and checkpoints of epochs up to 4 on disk.
JobSpec AfterOtherRuns() {
  JobSpec spec = FourRanks();
  spec.first_epoch = EpochId(5);
  spec.load_first = true;
  return spec;
}

TEST(Loading, GoesOnFromDiskInAnEpochOfItsOwn) {
  Scenario job(AfterOtherRuns());
  EXPECT_EQ(job.state.mode, Mode::kLoading);
  EXPECT_EQ(Text(job.commands), "choose for 5");
  EXPECT_EQ(job.Hear(2, RestoreChosen{EpochId(6), Checkpoint(4, 40), {}}), "") << "of another epoch";
  EXPECT_EQ(job.Hear(3, RestoreChosen{EpochId(5), Checkpoint(4, 40), {"the newer one is damaged"}}),
            "publish 5 4/40, spawn 5");
  EXPECT_EQ(job.state.restarts, 0);
  EXPECT_EQ(job.state.frontier, 40);
  EXPECT_TRUE(job.state.incidents.empty());
  job.ComeUp(4);
  job.See(45, 9);
  EXPECT_FALSE(job.state.recomputing);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kStartup, 9), 3);
  EXPECT_EQ(job.Hear(10, Killed(5, 2, SIGKILL, Step(45, 9), 9.9)), "kill 5 after 0 s, announce 1");
  job.Restart(11, Checkpoint(5, 45));
  EXPECT_EQ(job.state.epoch, EpochId(6));
}

TEST(Loading, BeginsAfreshWhereNothingIs) {
  Scenario job(AfterOtherRuns());
  EXPECT_EQ(job.Hear(3, RestoreChosen{EpochId(5), std::nullopt, {}}), "publish 5 none, spawn 5");
}

TEST(Loading, EndsTheJobWhereAllIsDamaged) {
  Scenario job(AfterOtherRuns());
  EXPECT_EQ(job.Hear(3, RestoreChosen{EpochId(5), std::nullopt, {"step 40: CRC", "step 30: CRC"}}),
            "kill 5 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(4, EpochStopped{EpochId(5)}), "finish 1");
  EXPECT_EQ(job.state.verdict, "no checkpoint on disk can be loaded: step 40: CRC");
}

TEST(Loading, CanBeStopped) {
  Scenario job(AfterOtherRuns());
  EXPECT_EQ(job.Hear(2, StopAsked{SIGTERM}), "kill 5 after 30 s, wait 150 s for the end");
  EXPECT_EQ(job.Hear(3, RestoreChosen{EpochId(5), Checkpoint(4, 40), {}}), "") << "too late";
  EXPECT_EQ(job.Hear(4, EpochStopped{EpochId(5)}), "finish 1");
}

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

TEST(LostConnection, WhoLeftInPeaceBeforeIsNamed) {
  Scenario job = Training();
  job.Hear(12.95, Exit(1, 2, {0, 0}, {}, 12.9));
  job.Hear(13, LostPeer(1, 0, {}, 12.95));
  job.Hear(14, SecondaryGraceOver{EpochId(1)});
  const incident::Finding& lead = Lead(job.Incident(0));
  EXPECT_EQ(lead.suspects, std::vector{incident::SuspectRank(RankId(2))});
  EXPECT_TRUE(lead.ambiguous_with.empty());
  EXPECT_THAT(job.Headline(0), HasSubstr("rank 2 left with an error: exit code 0 in step"));
  EXPECT_EQ(lead.evidence[1], "rank 0 lost its connection as a consequence");
  EXPECT_THAT(lead.evidence.back(), HasSubstr("RuntimeError"));
}

TEST(LostConnection, WhoLeftLongBeforeOrAfterIsNotTheCause) {
  for (const double left : {1.0, 13.5}) {
    Scenario job = Training();
    if (left < 13) job.Hear(left + 9, Exit(1, 2, {0, 0}, {}, left));
    job.Hear(13, LostPeer(1, 0, {}, 12.95));
    if (left > 13) job.Hear(13.6, Exit(1, 2, {0, 0}, {}, left));
    job.Hear(14, SecondaryGraceOver{EpochId(1)});
    EXPECT_EQ(Lead(job.Incident(0)).suspects, std::vector{incident::SuspectRank(RankId(0))}) << left;
  }
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
    EXPECT_EQ(job.Headline(0),
              "rank 3 left with an error: ValueError at train.py:41 in forward in step 17: it went wrong");
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
            "rank 0 failed before the first step: ModuleNotFoundError at train.py:41 in forward before the training "
            "loop began: "
            "No module named 'torhc': this is in the program, not in the machine");
}

TEST(Budget, RestartsWithoutProgressEndTheJob) {
  Scenario job = Training();
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    const double at = 20.0 * static_cast<double>(epoch);
    job.Hear(at, Killed(epoch, 2, SIGKILL));
    job.Restart(at + 1, Checkpoint(1, 10));
    job.ComeUp(at + 2);
  }
  job.Hear(90, Killed(4, 2, SIGKILL));
  EXPECT_EQ(job.Hear(91, EpochStopped{EpochId(4)}), "announce 4, finish 1");
  EXPECT_EQ(job.state.verdict,
            "3 restarts in a row brought no new step (the job stands at step 10); the last incident: rank 2 was killed "
            "by a signal: "
            "SIGKILL (signal 9) in step 11");
}

TEST(Budget, ANewStepBeginsTheCountAgain) {
  Scenario job = Training();
  for (uint64_t epoch = 1; epoch <= 20; ++epoch) {
    const double at = 20.0 * static_cast<double>(epoch);
    job.Hear(at, Killed(epoch, 2, SIGKILL));
    ASSERT_EQ(job.state.mode, Mode::kStopping);
    job.Restart(at + 1, Checkpoint(epoch, job.state.progress.step));
    job.ComeUp(at + 2);
    job.See(job.state.progress.step + 1, at + 3);
  }
}

TEST(Budget, IsUsedUpOneDay) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 0;
  Scenario job = Training(spec);
  EXPECT_EQ(job.Hear(13, Killed(1, 2, SIGKILL)), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_THAT(job.state.verdict, HasSubstr("all 0 restarts that were allowed are used up"));
}

RankExited PortTaken(uint64_t epoch) {
  RankExited event = Raised(epoch, 0, "RuntimeError");
  event.exception->port_taken = true;
  return event;
}

TEST(Budget, IsNotChargedForAPortThatWasTaken) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 1;
  Scenario job(spec);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    const double at = 20.0 * static_cast<double>(epoch);
    job.Hear(at, EpochSpawned{EpochId(epoch)});
    job.Hear(at + 1, PortTaken(epoch));
    ASSERT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
    job.Restart(at + 2, std::nullopt);
  }
  EXPECT_THAT(job.Incident(0).actions.front().text, HasSubstr("not charged"));
  job.ComeUp(100);
  job.See(10, 101);
  job.Hear(102, Killed(4, 2, SIGKILL));
  EXPECT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
  EXPECT_TRUE(Validate(job.state).ok());
}

TEST(Budget, APortThatIsNeverFreeIsNoAccident) {
  Scenario job(FourRanks());
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    job.Hear(20.0 * static_cast<double>(epoch), EpochSpawned{EpochId(epoch)});
    job.Hear(20.0 * static_cast<double>(epoch) + 1, PortTaken(epoch));
    job.Restart(20.0 * static_cast<double>(epoch) + 2, std::nullopt);
  }
  job.Hear(100, EpochSpawned{EpochId(4)});
  job.Hear(101, PortTaken(4));
  job.Hear(102, EpochStopped{EpochId(4)});
  EXPECT_EQ(job.state.mode, Mode::kFinished);
  EXPECT_THAT(job.state.verdict, HasSubstr("before the first step"));
}

// A script of its own snapshots, which reports no steps.
TEST(Budget, WasAskedForAndTheJobReportsNoSteps) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 5;
  spec.restarts_without_steps = true;
  Scenario job(spec);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    const double at = 20.0 * static_cast<double>(epoch);
    job.Hear(at, EpochSpawned{EpochId(epoch)});
    job.Hear(at + 1, Raised(epoch, 2, "ValueError"));
    ASSERT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
    job.Restart(at + 2, std::nullopt);
  }
  job.Hear(200, EpochSpawned{EpochId(6)});
  job.Hear(201, Raised(6, 2, "ValueError"));
  EXPECT_THAT(job.state.verdict, HasSubstr("all 5 restarts that were allowed are used up"));
}

// A script of its own snapshots, whose workers have run for a minute: by time alone it trains.
void TrainUnseen(Scenario& job, double spawned) {
  job.Hear(spawned, EpochSpawned{job.state.epoch});
  EXPECT_FALSE(TrainsUnseen(job.state, At(spawned + 59)));
  ASSERT_TRUE(TrainsUnseen(job.state, At(spawned + 60)));
  job.Hear(spawned + 60, LoopBegan{job.state.epoch, At(spawned + 60), job.state.restore, true});
}

TEST(Unseen, TrainsByTimeAloneAndItsIncidentCloses) {
  Scenario job(FourRanks());
  TrainUnseen(job, 2);
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_EQ(StatusReport(job.state, {}, At(70))["step"], -1);
  job.Hear(162, Killed(1, 2, SIGKILL, {}, 161));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9)");
  job.Restart(163, std::nullopt);
  TrainUnseen(job, 164);
  EXPECT_FALSE(job.state.open);
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("tells no steps"));
  EXPECT_THAT((*Story(job.state, 1, job.state.now))["outcome"].dump(), HasSubstr("trained again"));
  EXPECT_EQ(job.Incident(0).steps_lost, 0);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kStartup, 234), 61);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kDetect, 234), 1);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kRestart, 234), 62) << "until it counts as training";
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kRecompute, 234), 0) << "nobody knows what it does again";
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kProductive, 234), 99 + 10);
}

TEST(Unseen, IsNoJobThatToldSteps) {
  Scenario job = Training();
  job.Hear(20, Killed(1, 2, SIGKILL, Step(12, 19), 20));
  job.Restart(21, Checkpoint(1, 12));
  job.Hear(22, EpochSpawned{EpochId(2)});
  EXPECT_FALSE(TrainsUnseen(job.state, At(1000))) << "it loads for long";
}

TEST(Unseen, APortThatWasTakenCostsItNoRestartEither) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 1;
  Scenario job(spec);
  double at = 2;
  for (uint64_t epoch = 1; epoch <= 3; ++epoch, at += 100) {
    TrainUnseen(job, at);
    job.Hear(at + 70, PortTaken(epoch));
    ASSERT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
    job.Restart(at + 71, std::nullopt);
  }
  EXPECT_EQ(job.state.free_retries, 3);
  TrainUnseen(job, at);
  job.Hear(at + 70, PortTaken(4));
  EXPECT_EQ(job.state.mode, Mode::kFinishing) << "one that is never free is no accident";
}

TEST(Unseen, IsNotBeforeItsWorkersRunNorWhilePaused) {
  Scenario job(FourRanks());
  EXPECT_FALSE(TrainsUnseen(job.state, At(1000)));
  EXPECT_EQ(job.Hear(100, LoopBegan{EpochId(1), At(100), std::nullopt, true}), "");
  EXPECT_EQ(job.state.mode, Mode::kSpawning);
  job.Hear(101, EpochSpawned{EpochId(1)});
  job.Hear(102, JobPaused{});
  EXPECT_FALSE(TrainsUnseen(job.state, At(1000)));
  job.Hear(1001, JobContinued{});
  EXPECT_TRUE(TrainsUnseen(job.state, At(1001)));
}

TEST(Unseen, IsTakenBackWhenStepsAreToldAfterAll) {
  Scenario job(FourRanks());
  TrainUnseen(job, 2);
  job.Hear(300, LoopBegan{EpochId(1), At(299), std::nullopt});
  EXPECT_FALSE(job.state.unseen);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kStartup, 310), 298);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kProductive, 310), 11);
  job.See(0, 310);
  EXPECT_EQ(job.state.frontier, 0);
  job.Hear(320, Killed(1, 2, SIGKILL, Step(3, 319), 320));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 4");
  job.Hear(330, LoopBegan{EpochId(1), At(330), std::nullopt});
  EXPECT_EQ(job.state.ignored_events, 1);
}

// Each crash came an hour after the one before.
TEST(Unseen, GoesOnForAsManyCrashesAsLieFarApart) {
  Scenario job(FourRanks());
  double at = 2;
  for (uint64_t epoch = 1; epoch <= 8; ++epoch, at += 3700) {
    TrainUnseen(job, at);
    job.Hear(at + 3600, Killed(epoch, 2, SIGKILL, {}, at + 3600));
    ASSERT_EQ(job.state.mode, Mode::kStopping) << job.state.verdict;
    EXPECT_EQ(job.state.fault.plan.rung, Rung::kReattempt);
    job.Restart(at + 3601, std::nullopt);
  }
  EXPECT_EQ(job.state.restarts, 8);
  for (uint64_t epoch = 9; job.state.mode != Mode::kFinished && job.state.mode != Mode::kFinishing; ++epoch) {
    ASSERT_LT(epoch, 14u);
    job.Hear(at + 1, EpochSpawned{EpochId(epoch)});
    job.Hear(at + 10, Killed(epoch, 2, SIGKILL, {}, at + 10));
    if (job.state.mode == Mode::kStopping) job.Restart(at + 11, std::nullopt);
    at += 20;
  }
  EXPECT_THAT(job.state.verdict, HasSubstr("restarts in a row brought no new step")) << "those were soon after";
}

TEST(Unseen, NamesForTheRecord) {
  Scenario job(FourRanks());
  TrainUnseen(job, 2);
  job.Hear(100, Alerted{0, "link", AlertClass::kNetwork, "eth0", "it is down", At(100)});
  ASSERT_EQ(job.state.incidents.size(), 1u);
  EXPECT_FALSE(job.state.open) << "no step would close it";
  job.Hear(110, Suspect(1, 2, false, 109));
  EXPECT_TRUE(job.state.open) << "nothing says that it goes on";
}

TEST(Unseen, AnIncidentThatWasOnlyWatchedClosesWhenNothingIsSeenToKeepTheJob) {
  JobSpec spec = FourRanks();
  spec.observe_only = true;
  Scenario job(spec);
  TrainUnseen(job, 2);
  job.Hear(100, Suspect(1, 2, true, 99));
  ASSERT_TRUE(job.state.open);
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("restart of all 4 ranks from the beginning"));
  job.Hear(120, CaughtUp{EpochId(1), job.state.progress});
  EXPECT_FALSE(job.state.open);
  EXPECT_THAT(job.Incident(0).actions.back().text, HasSubstr("the job goes on"));
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kDecide, 200), 20);
  job.Hear(130, CaughtUp{EpochId(1), job.state.progress});
  EXPECT_EQ(job.state.ignored_events, 1);
}

TEST(Unseen, ReplaysFromTheJournal) {
  const LoopBegan began{EpochId(1), At(62), std::nullopt, true};
  const EventBody read = *EventFromJson("loop_began", ToJson(began));
  EXPECT_TRUE(std::get<LoopBegan>(read).unseen);
  EXPECT_FALSE(ToJson(LoopBegan{EpochId(1), At(62), std::nullopt}).contains("unseen")) << "as ever";
}

TEST(Hang, CertainKeepsStacksBeforeItKills) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(15, Suspect(1, 2, true, 13)), "keep stacks of 1, announce 1");
  EXPECT_EQ(job.state.mode, Mode::kConfirming);
  EXPECT_EQ(job.Hear(15.5, StacksKept{EpochId(1), "stacks.txt"}), "kill 1 after 0 s, announce 1");
  const incident::Phases phases = WithPhases(job.state, 0, At(16)).phases;
  EXPECT_NEAR(phases.recompute.value, 1, 1e-9);
  EXPECT_NEAR(phases.detect.value, 2, 1e-9);
  EXPECT_NEAR(phases.decide.value, 0.5, 1e-9);
}

TEST(Hang, UncertainIsNamedOnceAndTurnsIntoARestartWhenCertain) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(15, Suspect(1, 2, false, 13)), "announce 1");
  EXPECT_EQ(job.Hear(16, Suspect(1, 2, false, 13)), "");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_EQ(job.state.ledger.Current(), Phase::kProductive);
  EXPECT_EQ(job.Hear(17, Suspect(1, 2, true, 13)), "keep stacks of 1, announce 1");
  EXPECT_EQ(job.state.incidents.size(), 1u);
}

TEST(Hang, ThatEndsByItselfClosesItsIncident) {
  Scenario job = Training();
  job.Hear(15, Suspect(1, 2, false, 13));
  EXPECT_EQ(job.Hear(16, ProgressSeen{EpochId(1), Step(11, 16)}), "announce 1");
  EXPECT_EQ(job.Incident(0).actions.back().text, "the job went on by itself");
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kProductive, 20), 18);
}

TEST(ObserveOnly, SaysWhatItWouldDoAndDoesNothing) {
  Scenario job = Training(Observed());
  EXPECT_EQ(job.Hear(15, Suspect(1, 2, true, 13)), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_FALSE(job.Incident(0).actions.back().done);
  EXPECT_EQ(job.Hear(18.5, ProgressSeen{EpochId(1), Step(11, 18)}), "announce 1");
  EXPECT_NEAR(Lost(job.state, Phase::kProductive, 20), 10 + 2, 1e-9);
  EXPECT_NEAR(Lost(job.state, Phase::kDecide, 20), 3, 1e-9) << "nobody acted";
}

TEST(ObserveOnly, EndsWithTheJobsOwnStatus) {
  Scenario job = Training(Observed());
  EXPECT_EQ(job.Hear(15, Killed(1, 2, SIGKILL)), "announce 1");
  EXPECT_EQ(job.Hear(16, LostPeer(1, 0)), "");
  EXPECT_EQ(job.Hear(16, LostPeer(1, 1)), "");
  EXPECT_EQ(job.Hear(17, Exit(1, 3, {})), "announce 1, finish 1");
}

TEST(Stop, AsksKindlyThenNot) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(13, StopAsked{SIGINT}), "kill 1 after 30 s, wait 150 s for the end");
  EXPECT_EQ(job.Hear(13.5, Exit(1, 0, {0, SIGTERM})), "");
  EXPECT_EQ(job.Hear(14, StopAsked{SIGINT}), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(15, EpochStopped{EpochId(1)}), "finish 1");
  EXPECT_EQ(job.state.verdict, "stopped by SIGINT");
  EXPECT_TRUE(job.state.incidents.empty());
  EXPECT_EQ(job.Hear(16, StopAsked{SIGINT}), "") << "finished is finished";
}

TEST(Stop, PassesTheSignalOn) {
  Scenario job = Training();
  job.Hear(13, StopAsked{SIGHUP});
  ASSERT_EQ(job.commands.size(), 2u);
  EXPECT_EQ(std::get<KillEpoch>(job.commands[0]).signal, SIGHUP);
}

TEST(Stop, InTheMiddleOfARestartNeedsNoSecondKill) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  EXPECT_EQ(job.Hear(13.1, StopAsked{SIGTERM}), "wait 120 s for the end");
  EXPECT_EQ(job.Hear(13.2, EpochStopped{EpochId(1)}), "announce 1, finish 1");
  Scenario later = Training();
  later.Hear(13, Killed(1, 2, SIGKILL));
  later.Hear(13.1, EpochStopped{EpochId(1)});
  EXPECT_EQ(later.Hear(13.2, StopAsked{SIGTERM}), "announce 1, finish 1");
}

TEST(Pause, IsNobodysFault) {
  Scenario job = Training();
  job.Hear(13, JobPaused{});
  EXPECT_EQ(job.Hear(20, Suspect(1, 2, true, 13)), "");
  job.Hear(23, JobContinued{});
  EXPECT_TRUE(job.state.incidents.empty());
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kPaused, 30), 10);
  EXPECT_EQ(job.state.ledger.Current(), Phase::kProductive);
}

TEST(Pause, DoesNotHideADeath) {
  Scenario job = Training();
  job.Hear(13, JobPaused{});
  EXPECT_EQ(job.Hear(20, Killed(1, 2, SIGKILL, {}, 19)), "kill 1 after 0 s, announce 1");
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kPaused, 20), 7);
}

TEST(Spawning, ThatFailsAtFirstEndsTheJobAndLaterIsAFault) {
  Scenario first(FourRanks());
  first.Hear(2, SpawnFailed{EpochId(1), "python3: not found"});
  EXPECT_EQ(first.Hear(3, EpochStopped{EpochId(1)}), "finish 1");
  EXPECT_EQ(first.state.verdict, "the workers could not be started: python3: not found");
  Scenario later = Training();
  later.Hear(13, Killed(1, 2, SIGKILL));
  later.Restart(14, Checkpoint(1, 10));
  EXPECT_EQ(later.Hear(15, SpawnFailed{EpochId(2), "fork: out of memory"}), "kill 2 after 0 s, announce 1, announce 2");
}

TEST(Watcher, ThatWasGoneIsHistoryOnly) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(20, WatcherGone{At(15)}), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_EQ(job.Incident(0).findings[0].syndrome, incident::Syndrome::kWatcherLost);
  EXPECT_DOUBLE_EQ(ToSeconds(job.Incident(0).closed - job.Incident(0).opened).value, 5);
  EXPECT_DOUBLE_EQ(Lost(job.state, Phase::kProductive, 20), 18);
}

// No other one took over, and who stands by has not gone.
TEST(Watcher, ThatWasStoppedIsHistoryAndGoesOn) {
  Scenario job = Training();
  job.Hear(14, StandbyCame{{"c", 2, "c's"}});
  EXPECT_EQ(job.Hear(20, WatcherGone{At(15), true}), "announce 1");
  EXPECT_EQ(job.Headline(0), "the coordinator was gone; training went on: nobody watched for 5.000 s");
  EXPECT_EQ(job.Incident(0).actions.back().text, "it goes on; agents that had given it up came anew");
  EXPECT_EQ(job.Incident(0).closed, At(20));
  EXPECT_EQ(job.state.standbys.size(), 1U);
}

// Of several nodes the slowest rank is known by what its agent said last; the checkpoint tells that it had gone on.
TEST(Restart, FromALaterStepThanTheFaultWasThoughtToBeInCorrectsIt) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL, Step(18, 13)));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 19");
  job.Restart(14, Checkpoint(1, 22));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 23");
  EXPECT_EQ(job.Incident(0).steps_lost, 0);
  EXPECT_EQ(job.state.frontier, 22);
}

TEST(Restart, FromAnEarlierStepCorrectsNothing) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL, Step(18, 13)));
  job.Restart(14, Checkpoint(1, 15));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 19");
  EXPECT_EQ(job.Incident(0).steps_lost, 3);
}

TEST(Watcher, AnAgentThatIsLostIsNamedUntilItIsBack) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)}), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning) << "its ranks train on";
  EXPECT_EQ(job.Incident(0).closed, Nanos{});
  EXPECT_EQ(job.Hear(21, AgentLost{1, "b", "again", At(21)}), "");
  EXPECT_EQ(job.Hear(22, Killed(1, 0, SIGKILL)), "kill 1 after 0 s, announce 2") << "another incident meanwhile";
  EXPECT_EQ(job.Hear(23, AgentBack{1}), "announce 1");
  EXPECT_EQ(job.Incident(0).closed, At(23));
  EXPECT_TRUE(Validate(job.state).ok());
}

TEST(Watcher, AnAgentThatIsGoneEndsTheJob) {
  Scenario job = Training();
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  EXPECT_EQ(job.Hear(90, AgentGone{1, "node b is lost"}), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(91, EpochStopped{EpochId(1)}), "announce 2, announce 1, finish 3");
  EXPECT_EQ(job.state.verdict, "node b is lost");
  EXPECT_EQ(job.Incident(0).closed, At(91));
}

// Nobody can take its place: what the log says, an incident says too.
TEST(Watcher, AStarterThatDiesEndsTheJobWithAnIncident) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(20, AgentGone{0, "the starter process of node tower was killed", "tower"}),
            "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(20, EpochStopped{EpochId(1)}), "announce 1, finish 3");
  ASSERT_EQ(job.state.incidents.size(), 1u);
  EXPECT_EQ(job.Headline(0), "node tower is lost, and its ranks with it: the starter process of node tower was killed");
  EXPECT_TRUE(incident::Lead(job.Incident(0)).certain);
  EXPECT_EQ(job.Incident(0).actions.back().kind, incident::ActionKind::kStop);
  EXPECT_EQ(job.Incident(0).closed, At(20));
  EXPECT_EQ(WithPhases(job.state, 0, At(30)).phases.recompute, Seconds{8}) << "the work since step 10";
}

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
    job.Hear(90, AgentGone{1, "its agent is silent", "b"});
    EXPECT_EQ(job.Hear(91, EpochStopped{EpochId(1)}),
              crashed_first ? "announce 1, announce 2, finish 3" : "announce 2, announce 1, finish 3");
    ASSERT_EQ(job.state.incidents.size(), 2u);
    EXPECT_EQ(job.Headline(crashed_first ? 0 : 1), crashed_first
                                                       ? "rank 0 was killed by a signal: SIGKILL (signal 9) in step 11"
                                                       : "node b is lost, and its ranks with it: its agent is silent");
    EXPECT_EQ(job.Incident(crashed_first ? 0 : 1).findings.size(), 2u);
  }
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

TEST(Standby, IsNotTouchedByWhoOnlyObserves) {
  Scenario job = WithStandby(Observed());
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

TEST(Watcher, TakesUpWhatWasPending) {
  Scenario job = Training();
  EXPECT_EQ(Text(PendingCommands(job.state)), "");
  job.Hear(13, LostPeer(1, 0));
  EXPECT_EQ(Text(PendingCommands(job.state)), "wait 1 s for a culprit");
  job.Hear(14, SecondaryGraceOver{EpochId(1)});
  EXPECT_EQ(Text(PendingCommands(job.state)), "kill 1 after 0 s");
  job.Hear(15, EpochStopped{EpochId(1)});
  EXPECT_EQ(Text(PendingCommands(job.state)), "choose for 2");
  job.Hear(16, RestoreChosen{EpochId(2), Checkpoint(1, 10), {}});
  EXPECT_EQ(Text(PendingCommands(job.state)), "publish 2 1/10, spawn 2");
  job.Hear(17, StopAsked{SIGINT});
  EXPECT_EQ(Text(PendingCommands(job.state)), "kill 2 after 30 s, wait 150 s for the end");
  job.Hear(18, EpochStopped{EpochId(2)});
  EXPECT_EQ(Text(PendingCommands(job.state)), "finish 1");
}

TEST(JournalBehind, RestartsWhatNobodyWroteDown) {
  Scenario job = Training();
  EXPECT_EQ(job.Hear(13, JournalBehind{EpochId(3)}), "kill 3 after 0 s, announce 1");
  EXPECT_EQ(job.state.restarts, 2);
  EXPECT_EQ(job.Hear(14, JournalBehind{EpochId(3)}), "") << "said by another agent";
  EXPECT_EQ(job.Hear(15, EpochStopped{EpochId(3)}), "choose for 4");
}

// The older epoch was being killed, or was gone; the one that acts was not.
TEST(JournalBehind, AnEpochThatRunsIsKilledBeforeTheJobEnds) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 1;
  Scenario stopping = Training(spec);
  stopping.Hear(13, Killed(1, 2, SIGKILL));
  EXPECT_EQ(stopping.Hear(14, JournalBehind{EpochId(2)}), "kill 2 after 0 s, wait 120 s for the end, announce 1");
  EXPECT_EQ(stopping.state.mode, Mode::kFinishing);
  Scenario choosing = Training(spec);
  choosing.Hear(13, Killed(1, 2, SIGKILL));
  choosing.Hear(13.5, EpochStopped{EpochId(1)});
  EXPECT_EQ(choosing.Hear(14, JournalBehind{EpochId(2)}), "kill 2 after 0 s, wait 120 s for the end, announce 1");
  EXPECT_EQ(choosing.Hear(15, EpochStopped{EpochId(2)}), "announce 2, finish 1");
}

// Restarts for an update or a rollback are free, and which of them were for that is not written down either. Whoever
// led kept to the budget.
TEST(JournalBehind, NoMoreIsChargedThanWasAllowed) {
  JobSpec spec = FourRanks();
  spec.max_restarts = 2;
  Scenario within = Training(spec);
  within.Hear(13, JournalBehind{EpochId(2)});
  EXPECT_EQ(within.state.restarts, 1);
  EXPECT_EQ(within.state.free_retries, 0);
  EXPECT_EQ(within.state.mode, Mode::kStopping);
  Scenario beyond = Training(spec);
  EXPECT_EQ(beyond.Hear(13, JournalBehind{EpochId(5)}), "kill 5 after 0 s, wait 120 s for the end");
  EXPECT_EQ(beyond.state.restarts, 4);
  EXPECT_EQ(beyond.state.free_retries, 2);
  EXPECT_EQ(beyond.state.mode, Mode::kFinishing) << "what was allowed may be used up";
}

// The choice was made and the epoch begun, and then neither was written down.
TEST(JournalBehind, TheFirstEpochRunsWhileItsCheckpointIsChosen) {
  const EpochId first(5), next(6);
  for (const EventBody& said : {EventBody(EpochSpawned{first}), EventBody(LoopBegan{first, At(2), {}}),
                                EventBody(SpawnFailed{first, "no memory"}), EventBody(EpochStopped{first})}) {
    Scenario job(AfterOtherRuns());
    EXPECT_EQ(job.Hear(3, said), "kill 5 after 0 s, announce 1") << TypeName(said);
    EXPECT_EQ(job.Hear(4, EpochStopped{first}), "choose for 6");
    Scenario damaged = job;
    EXPECT_EQ(damaged.Hear(5, RestoreChosen{next, {}, {"it is damaged"}}), "announce 1, finish 1");
    EXPECT_EQ(damaged.state.verdict, "no checkpoint on disk can be loaded: it is damaged");
    EXPECT_EQ(job.Hear(5, RestoreChosen{next, Checkpoint(3, 9), {}}), "publish 6 3/9, spawn 6, announce 1");
    EXPECT_EQ(job.state.restarts, 1);
  }
}

TEST(Fencing, StaleAndDoubleEventsAreCountedAndIgnored) {
  Scenario job = Training();
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Hear(13, Killed(1, 2, SIGKILL));
  job.Restart(14, Checkpoint(1, 10));
  job.Hear(14, EpochStopped{EpochId(1)});
  job.Hear(14, RestoreChosen{EpochId(2), std::nullopt, {}});
  job.Hear(14, Killed(1, 3, SIGKILL));
  job.Hear(14, Killed(2, 17, SIGKILL));
  job.Hear(14, JobStarted{FourRanks()});
  EXPECT_EQ(job.state.ignored_events, 6);
  EXPECT_EQ(job.state.mode, Mode::kSpawning);
}

}  // namespace
}  // namespace lockstep::control
