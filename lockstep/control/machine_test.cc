#include "lockstep/control/machine.h"

#include <gmock/gmock.h>
#include <signal.h>

#include "lockstep/control/four_ranks.h"
#include "lockstep/control/report.h"

namespace lockstep::control {
namespace {

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
  Scenario job = Training(OnlyObserved());
  EXPECT_EQ(job.Hear(15, Suspect(1, 2, true, 13)), "announce 1");
  EXPECT_EQ(job.state.mode, Mode::kRunning);
  EXPECT_FALSE(job.Incident(0).actions.back().done);
  EXPECT_EQ(job.Hear(18.5, ProgressSeen{EpochId(1), Step(11, 18)}), "announce 1");
  EXPECT_NEAR(Lost(job.state, Phase::kProductive, 20), 10 + 2, 1e-9);
  EXPECT_NEAR(Lost(job.state, Phase::kDecide, 20), 3, 1e-9) << "nobody acted";
}

TEST(ObserveOnly, EndsWithTheJobsOwnStatus) {
  Scenario job = Training(OnlyObserved());
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

// Its last word may be older than its end.
TEST(Watcher, ThatIsGoneIsMissedForUpToTheTimeSinceItsLastWordUnlessItsEndWasNoted) {
  Scenario job = Training();
  job.Hear(20, WatcherGone{At(15)});
  EXPECT_EQ(job.Headline(0), "the coordinator was gone: nobody watched for up to 5.000 s");
  job.Hear(30, WatcherGone{At(29), false, true});
  EXPECT_EQ(job.Headline(1), "the coordinator was gone: nobody watched for 1.000 s");
}

// No other one took over, and who stands by has not gone.
TEST(Watcher, ThatWasStoppedIsHistoryAndGoesOn) {
  Scenario job = Training();
  job.Hear(14, StandbyCame{{"c", 2, "c's"}});
  EXPECT_EQ(job.Hear(20, WatcherGone{At(15), true}), "announce 1");
  EXPECT_EQ(job.Headline(0), "the coordinator was gone: nobody watched for 5.000 s");
  EXPECT_EQ(job.Incident(0).actions.back().text, "it goes on; agents that had given it up came anew");
  EXPECT_EQ(job.Incident(0).closed, At(20));
  EXPECT_EQ(job.state.standbys.size(), 1U);
}

// Of several nodes the slowest rank is known by what its agent said last; the rank that left tells that it had gone on.
TEST(Restart, FromALaterStepThanTheSlowestRankWasKnownToBeInAgreesWithTheFault) {
  Scenario job = Training();
  job.Hear(13, InItsStep(Killed(1, 2, SIGKILL, Step(18, 13)), 22));
  EXPECT_EQ(job.Headline(0), "rank 2 was killed by a signal: SIGKILL (signal 9) in step 23");
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
  EXPECT_EQ(job.Headline(0), "the agent of node b was gone: its connection was lost") << "what becomes of it is open";
  EXPECT_EQ(job.Incident(0).closed, Nanos{});
  EXPECT_EQ(job.Hear(21, AgentLost{1, "b", "again", At(21)}), "");
  EXPECT_EQ(job.Hear(22, Killed(1, 0, SIGKILL)), "kill 1 after 0 s, announce 2") << "another incident meanwhile";
  EXPECT_EQ(job.Hear(23, AgentBack{1}), "announce 1");
  EXPECT_EQ(job.Incident(0).closed, At(23));
  EXPECT_TRUE(Validate(job.state).ok());
}

TEST(Watcher, AnAgentThatIsGoneEndsTheJob) {
  JobSpec spec = FourRanks();
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  Scenario job = Training(std::move(spec));
  job.Hear(20, AgentLost{1, "b", "its connection was lost", At(19)});
  EXPECT_EQ(job.Hear(90, AgentGone{1, "its agent is silent"}), "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(91, EpochStopped{EpochId(1)}), "announce 2, announce 1, finish 3");
  EXPECT_EQ(job.state.verdict, "node b is lost: its agent is silent");
  EXPECT_EQ(job.Incident(0).closed, At(91));
}

// Nobody can take its place: what the log says, an incident says too.
TEST(Watcher, AStarterThatDiesEndsTheJobWithAnIncident) {
  JobSpec spec = FourRanks();
  spec.nodes = {{"tower", 4, "tower's"}};
  Scenario job = Training(std::move(spec));
  EXPECT_EQ(job.Hear(20, AgentGone{0, "the starter process of node tower was killed"}),
            "kill 1 after 0 s, wait 120 s for the end");
  EXPECT_EQ(job.Hear(20, EpochStopped{EpochId(1)}), "announce 1, finish 3");
  ASSERT_EQ(job.state.incidents.size(), 1u);
  EXPECT_EQ(job.Headline(0), "node tower is lost, and its ranks with it: the starter process of node tower was killed");
  EXPECT_TRUE(incident::Lead(job.Incident(0)).certain);
  EXPECT_EQ(job.Incident(0).actions.back().kind, incident::ActionKind::kStop);
  EXPECT_EQ(job.Incident(0).closed, At(20));
  EXPECT_EQ(WithPhases(job.state, 0, At(30)).phases.recompute, Seconds{8}) << "the work since step 10";
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
