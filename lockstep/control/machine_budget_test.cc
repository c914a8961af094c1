// How many restarts a job has, and jobs that report no steps.
#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/four_ranks.h"
#include "lockstep/control/machine.h"
#include "lockstep/control/report.h"
#include "lockstep/control/story.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

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
  EXPECT_THAT(OneLine((*Story(job.state, 1, job.state.now))["outcome"]), HasSubstr("trained again"));
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

// How far it had come, and whether it comes further the next time, is not known.
TEST(Unseen, AnErrorEndsItAndIsPutDownToNothing) {
  Scenario job(FourRanks());
  TrainUnseen(job, 2);
  job.Hear(500'000, Raised(1, 1, "ValueError"));
  EXPECT_EQ(job.state.mode, Mode::kFinishing);
  EXPECT_EQ(job.state.verdict,
            "rank 1 failed: ValueError at train.py:41 in forward: it went wrong: nobody knows whether a restart helps "
            "a job that tells no steps; --max-restarts N allows N of them, whatever the failure");
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
  EXPECT_THAT(job.state.verdict, HasSubstr("restarts in a row brought no new step (none was ever told)"))
      << "those were soon after";
}

// Each is noticed at the hang limit, twelve minutes after training began.
TEST(Unseen, HangsThatComeSoonBringNoProgressHoweverLateTheyAreNoticed) {
  Scenario job(FourRanks());
  double at = 2;
  for (uint64_t epoch = 1; job.state.mode != Mode::kFinishing; ++epoch, at += 1000) {
    ASSERT_LT(epoch, 6u) << "it hangs for ever";
    TrainUnseen(job, at);
    job.Hear(at + 780, Suspect(epoch, 2, true, at + 180));
    job.Hear(at + 781, StacksKept{EpochId(epoch), ""});
    if (job.state.mode == Mode::kStopping) job.Restart(at + 782, std::nullopt);
  }
  EXPECT_THAT(job.state.verdict, HasSubstr("restarts in a row brought no new step (none was ever told)"));
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

}  // namespace
}  // namespace lockstep::control
