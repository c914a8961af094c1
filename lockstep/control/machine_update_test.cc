// Hot update: a version is asked for, merged into a restart or makes one, is on trial, and is accepted or taken back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/control/report.h"
#include "lockstep/control/scenario.h"
#include "lockstep/control/story.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

JobSpec Job(int max_restarts = 1000) {
  JobSpec spec;
  spec.ranks = 4;
  spec.max_restarts = max_restarts;
  return spec;
}

UpdateAsked Code(const char* directory, bool now = false) {
  return {.code = directory, .hash = std::string("hash of ") + directory, .now = now, .within = Seconds{3600}};
}
UpdateAsked Env(const char* value, bool now = false) {
  return {.env = {{"LR", value}}, .now = now, .within = Seconds{3600}};
}

VersionStage StageOf(const Scenario& job, int version) {
  return job.state.versions.at(static_cast<size_t>(version)).stage;
}
const std::string& WhyOf(const Scenario& job, int version) {
  return job.state.versions.at(static_cast<size_t>(version)).why;
}

// Epoch 1 runs and has finished step 10, each in 0.1 s.
Scenario Trained(JobSpec spec = Job()) {
  Scenario job(std::move(spec));
  job.ComeUp(2);
  job.Hear(10, ProgressSeen{job.state.epoch, Step(10, 10), Seconds{0.1}});
  return job;
}

// Version 1 runs, from step 10, and is on trial.
Scenario OnTrial(JobSpec spec = Job()) {
  Scenario job = Trained(std::move(spec));
  job.Hear(11, Env("1", true));
  job.Restart(12, Checkpoint(1, 10));
  job.ComeUp(13);
  return job;
}

void See(Scenario& job, int64_t step, double end, double step_time) {
  job.Hear(end, ProgressSeen{job.state.epoch, Step(step, end), Seconds{step_time}});
}

TEST(Update, TellsThatNoCopyOfTheBeginningIsKept) {
  Scenario job = Trained();
  EXPECT_EQ(job.Hear(10.1, CodeKept{0, "node a: too large"}), "");
  job.Hear(10.2, CodeKept{0, "node b: too large"});
  job.Hear(11, Env("1"));
  const auto why = [&] { return StatusReport(job.state, Observed{}, job.state.now)["versions"][0]["why"]; };
  EXPECT_EQ(why(), "a way back to it takes what is there then: node a: too large");
  job.Hear(12, CodeKept{0, "node a: large.so is linked", "abc"});
  EXPECT_EQ(why(), "a way back to it takes a copy: node a: large.so is linked");
  job.Hear(13, CodeKept{0, "", "abc"});
  EXPECT_EQ(why(), "");
  EXPECT_EQ(job.state.ignored_events, 0);
}

// The one that another node has may be of what is there now.
TEST(Update, CopiesOfTheBeginningRunWhereAllNodesHaveTheSame) {
  JobSpec spec = Job();
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  Scenario job = Trained(spec);
  const auto to_run = [&] { return std::pair(VersionToRun(job.state).kept, VersionToRun(job.state).hash); };
  job.Hear(11, Env("1", true));
  job.Restart(12, Checkpoint(1, 10));
  EXPECT_EQ(to_run(), std::pair(false, std::string())) << "not all nodes have said that they have one";
  job.ComeUp(13);
  job.Hear(14, CodeKept{0, "", "abc"});
  EXPECT_EQ(to_run(), std::pair(false, std::string())) << "who joins the epoch late runs what the others do";
  job.Hear(15, Env("2", true));
  job.Restart(16, Checkpoint(2, 10));
  EXPECT_EQ(to_run(), std::pair(true, std::string("abc")));
  job.ComeUp(17);
  job.state.spec.nodes.back().token = "of a standby";
  job.Hear(18, Env("3", true));
  job.Restart(19, Checkpoint(3, 10));
  EXPECT_EQ(to_run(), std::pair(false, std::string()));
}

TEST(Update, NowIsOnceTheNodesHaveTheCode) {
  Scenario job = Trained();
  EXPECT_EQ(job.Hear(11, Code("/new", true)), "keep code 1");
  EXPECT_EQ(VersionToCopy(job.state)->hash, "hash of /new");
  EXPECT_EQ(job.Hear(11.1, CodeKept{1, ""}), "kill 1 after 0 s, announce 1");
  EXPECT_TRUE(std::get<KillEpoch>(job.commands.front()).anew);
  EXPECT_EQ(job.Headline(0), "version 1 was asked for: code /new");
  EXPECT_EQ(job.Hear(11.2, EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(job.Hear(11.3, RestoreChosen{EpochId(2), Checkpoint(1, 10), {}}),
            "publish 2 1/10, spawn 2 version 1, announce 1");
  EXPECT_EQ(std::get<Spawn>(job.commands[1]).version.code, "/new");
  job.ComeUp(12);
  job.See(11, 12.1);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kOnTrial);
  EXPECT_EQ(job.Incident(0).steps_lost, 0);
  EXPECT_NE(job.Incident(0).closed.value, 0) << "an incident for the record, closed when the job is back";
}

TEST(Update, WaitsForTheNextRestart) {
  Scenario job = Trained();
  EXPECT_EQ(job.Hear(11, Env("1")), "");
  EXPECT_EQ(StageOf(job, 1), VersionStage::kWaiting);
  EXPECT_EQ(job.Hear(20, Killed(1, 2, SIGKILL, Step(15, 20), 20)), "kill 1 after 0 s, announce 1");
  job.Restart(21, Checkpoint(1, 15));
  EXPECT_EQ(std::get<Spawn>(job.commands[1]).version.env.at("LR"), "1");
  EXPECT_EQ(job.state.restarts, 1) << "it did not take one of its own";
  const Json story = *Story(job.state, 1, job.state.now);
  EXPECT_THAT(OneLine(story["done"]), HasSubstr("version 1 (LR=1) in place of version 0"));
}

TEST(Update, IsForcedAfterItsTime) {
  Scenario job = Trained();
  job.Hear(11, Env("1"));
  EXPECT_FALSE(UpdateThatIsDue(job.state, At(3610)));
  EXPECT_EQ(UpdateThatIsDue(job.state, At(3611)), 1);
  EXPECT_EQ(job.Hear(3611, UpdateDue{1}), "kill 1 after 0 s, announce 1");
  EXPECT_FALSE(UpdateThatIsDue(job.state, At(4000)));
  job.Hear(3612, UpdateDue{1});
  EXPECT_EQ(job.state.ignored_events, 0) << "it waits still, and was said again";
}

TEST(Update, IsNotChargedToTheBudget) {
  Scenario job = OnTrial(Job(1));
  See(job, 40, 20, 0.1);
  ASSERT_EQ(StageOf(job, 1), VersionStage::kGood);
  job.Hear(30, Killed(2, 1, SIGKILL, Step(41, 30), 30));
  job.Restart(31, Checkpoint(2, 41));
  EXPECT_EQ(job.state.mode, Mode::kSpawning) << "the one restart that is allowed was there";
}

TEST(Update, IsAcceptedAfterItsSteps) {
  Scenario job = OnTrial();
  See(job, 29, 20, 0.1);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kOnTrial) << "it began at step 10 and has made 19";
  See(job, 30, 21, 0.1);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kGood);
  EXPECT_THAT(StatusReport(job.state, Observed{}, job.state.now)["versions"][1]["why"], "accepted at step 30");
}

// No rank tells steps, in any epoch.
Scenario OnTrialUnseen() {
  Scenario job(Job());
  for (const double at : {2.0, 102.0}) {
    job.Hear(at, EpochSpawned{job.state.epoch});
    job.Hear(at + 60, LoopBegan{job.state.epoch, At(at + 60), std::nullopt, true});
    if (at < 100) job.Hear(100, Env("1", true));
    if (at < 100) job.Restart(101, std::nullopt);
  }
  return job;
}

TEST(Update, OfAJobThatTellsNoStepsIsAcceptedByTime) {
  Scenario job = OnTrialUnseen();
  EXPECT_FALSE(IsTrialOver(job.state, {}, {}, At(762)));
  ASSERT_TRUE(IsTrialOver(job.state, {}, {}, At(763)));
  job.Hear(763, ProgressSeen{EpochId(2), job.state.progress});
  EXPECT_EQ(StageOf(job, 1), VersionStage::kGood);
  EXPECT_EQ(WhyOf(job, 1), "accepted after 601 s, uncompared: it tells no steps");
}

TEST(Update, OfAJobThatTellsNoStepsIsNotTakenBackLater) {
  Scenario soon = OnTrialUnseen();
  soon.Hear(700, Killed(2, 1, SIGKILL, {}, 700));
  EXPECT_EQ(soon.state.fault.plan.rung, Rung::kRollback);
  Scenario later = OnTrialUnseen();
  later.Hear(900, Killed(2, 1, SIGKILL, {}, 900));
  EXPECT_EQ(later.state.fault.plan.rung, Rung::kReattempt);
}

TEST(Update, IsAcceptedUncomparedWhereAPaceIsNotKnown) {
  Scenario job = OnTrial();
  job.Hear(40, ProgressSeen{EpochId(2), Step(209, 40)});
  EXPECT_EQ(StageOf(job, 1), VersionStage::kOnTrial) << "it may become known";
  job.Hear(41, ProgressSeen{EpochId(2), Step(210, 41)});
  EXPECT_EQ(WhyOf(job, 1), "accepted at step 210, uncompared: too few looks told how long its steps take");
}

TEST(Update, ThatRaisesIsTakenBack) {
  Scenario job = OnTrial();
  job.Hear(13.4, CodeKept{0, "", "abc"});
  job.See(11, 13.5);  // the update's own incident is closed
  EXPECT_EQ(job.Hear(14, Raised(2, 0, "ValueError", Step(12, 14), 14)), "kill 2 after 0 s, announce 2");
  EXPECT_TRUE(std::get<KillEpoch>(job.commands.front()).anew);
  job.Restart(15, Checkpoint(2, 12));
  EXPECT_EQ(std::get<Spawn>(job.commands[1]).version.env.size(), 0u);
  EXPECT_TRUE(std::get<Spawn>(job.commands[1]).version.kept);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kBad);
  EXPECT_THAT(WhyOf(job, 1), HasSubstr("incident 2"));
  const Json story = *Story(job.state, 2, job.state.now);
  EXPECT_EQ(story["decisions"][0]["rung"], "rollback");
  EXPECT_THAT(OneLine(story["done"]), HasSubstr("back to version 0"));
  job.ComeUp(16);
  job.See(13, 17);
  EXPECT_EQ(job.Hear(20, Killed(3, 0, SIGKILL, Step(15, 20), 20)), "kill 3 after 0 s, announce 3");
  job.Restart(21, Checkpoint(3, 15));
  EXPECT_EQ(job.state.running, 0) << "it is not taken again";
}

TEST(Update, ThatCantEvenBeginIsTakenBack) {
  Scenario job = Trained(Job(0));
  job.Hear(11, Env("1", true));
  job.Restart(12, Checkpoint(1, 10));
  job.Hear(12.1, EpochSpawned{EpochId(2)});
  job.Hear(12.2, Raised(2, 0, "SyntaxError"));
  job.Restart(13, Checkpoint(1, 10));
  EXPECT_EQ(job.state.mode, Mode::kSpawning) << "though no restart is allowed: it is the update's";
  EXPECT_EQ(job.state.running, 0);
  Scenario unspawned = Trained(Job(0));
  unspawned.Hear(11, Env("1", true));
  unspawned.Restart(12, Checkpoint(1, 10));
  unspawned.Hear(12.1, SpawnFailed{EpochId(2), "its code is gone"});
  unspawned.Restart(13, Checkpoint(1, 10));
  EXPECT_EQ(unspawned.state.running, 0);
}

// Version 1 runs, and its ranks leave with 0.
Scenario LeftAtOnce(bool restored, JobSpec spec = Job(0), double at = 12.3) {
  Scenario job = Trained(std::move(spec));
  job.Hear(11, Env("1", true));
  job.Restart(12, Checkpoint(1, 10));
  job.Hear(12.1, EpochSpawned{EpochId(2)});
  if (restored) job.Hear(12.2, LoopBegan{EpochId(2), At(12.2), job.state.restore});
  for (int rank = 0; rank < 4; ++rank) job.Hear(at, Exit(2, rank, {0, 0}, {}, at));
  return job;
}

TEST(Update, ThatLeavesBeforeItBeginsIsTakenBack) {
  Scenario job = LeftAtOnce(false);
  EXPECT_EQ(Text(job.commands), "kill 2 after 0 s, announce 1, announce 2");
  EXPECT_EQ(
      job.Headline(1),
      "version 1 ended: exit code 0 of all ranks before the training loop began, of a job that stands at step 10");
  job.Restart(13, Checkpoint(1, 10));
  EXPECT_EQ(StageOf(job, 1), VersionStage::kBad);
  EXPECT_EQ(job.state.running, 0);
  for (int rank = 0; rank < 4; ++rank) job.Hear(14, Exit(3, rank, {0, 0}, {}, 14));
  EXPECT_EQ(job.state.verdict, "completed") << "it was not the version's: where nothing is left, the job says so";
}

TEST(Update, ThatHasNothingLeftToTrainCompletesTheJob) { EXPECT_EQ(LeftAtOnce(true).state.verdict, "completed"); }

TEST(Update, ThatTellsNoStepsAndRanForLongCompletesTheJob) {
  EXPECT_EQ(LeftAtOnce(false, Job(0), 12.1 + 599).state.verdict, "") << "it may have loaded for as long";
  EXPECT_EQ(LeftAtOnce(false, Job(0), 12.1 + 601).state.verdict, "completed");
}

TEST(Update, ThatLeavesBeforeItBeginsEndsTheJobWhereRollbackIsOff) {
  JobSpec spec = Job();
  spec.policy.rollback = false;
  const Scenario job = LeftAtOnce(false, spec);
  EXPECT_EQ(job.state.exit_code, kExitFailed);
  EXPECT_THAT(job.state.verdict, HasSubstr("this is in the program, not in the machine"));
}

// So a script that has forgotten restore() ends before it overwrites what the job has.
TEST(Update, TellsItsRanksThatItIsOnTrial) {
  const auto told = [](const Scenario& job) { return VersionToRun(job.state).env["LOCKSTEP_ON_TRIAL"]; };
  EXPECT_TRUE(VersionToRun(Trained().state).env.empty());
  Scenario job = OnTrial();
  EXPECT_EQ(told(job), "1");
  See(job, 30, 20, 0.1);
  EXPECT_EQ(told(job), "0") << "of a rank that keeps its process, what it was told before holds otherwise";
}

TEST(Update, ThatMakesTheJobSlowerIsTakenBack) {
  Scenario job = OnTrial();
  See(job, 30, 20, 0.119);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kGood) << "update.slower is 20 %";
  Scenario slow = OnTrial();
  See(slow, 30, 20, 0);
  EXPECT_EQ(StageOf(slow, 1), VersionStage::kOnTrial) << "its pace is not known yet";
  See(slow, 31, 20.2, 0.125);
  EXPECT_EQ(Text(slow.commands), "kill 2 after 0 s, announce 2");
  EXPECT_THAT(slow.Headline(1), HasSubstr("the job under version 1 has become slower, all ranks alike"));
  EXPECT_THAT(slow.Incident(1).findings[0].evidence[0], HasSubstr("a step takes 125 ms, 100 before it: 25 % more"));
  slow.Restart(21, Checkpoint(2, 31));
  EXPECT_EQ(slow.state.running, 0);
  EXPECT_EQ(StageOf(slow, 1), VersionStage::kBad);
}

TEST(Update, IsNotBlamedForALostNode) {
  JobSpec spec = Job();
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  spec.standbys = 1;
  Scenario job = OnTrial(spec);
  job.Hear(13.1, StandbyCame{{"s", 2, "s's"}});
  job.Hear(13.2, AgentLost{1, "b", "nothing heard", At(13.2)});
  job.Hear(14, AgentGone{1, "nothing heard for 65 s"});
  job.Restart(15, Checkpoint(2, 12));
  EXPECT_EQ(job.state.running, 1);
  EXPECT_EQ(StageOf(job, 1), VersionStage::kOnTrial);
  job.ComeUp(16);
  EXPECT_EQ(job.state.trial_ends, 32) << "its trial begins anew";
}

TEST(Update, GoesBackDownTheLadderLater) {
  Scenario job = OnTrial();
  See(job, 30, 20, 0.1);
  ASSERT_TRUE(CanRollBack(job.state));
  job.Hear(30, Raised(2, 0, "ValueError", Step(35, 30), 30));
  job.Restart(31, Checkpoint(2, 35));
  EXPECT_EQ(job.state.running, 0) << "a program's error is answered so, wherever an earlier version was good";
  EXPECT_FALSE(CanRollBack(job.state));
}

TEST(Update, BuildsOnTheOneBefore) {
  Scenario job = Trained();
  job.Hear(11, Code("/new"));
  job.Hear(11.1, Env("1"));
  EXPECT_EQ(Text(job.commands), "keep code 2") << "the first had not been copied everywhere";
  EXPECT_EQ(WhyOf(job, 1), "version 2 holds it");
  EXPECT_EQ(job.state.versions[2].version.code, "/new");
  job.Hear(11.2, CodeKept{1, ""});
  EXPECT_EQ(StageOf(job, 2), VersionStage::kCopying) << "that was another one";
  job.Hear(11.3, CodeKept{2, "node b: /new does not exist"});
  EXPECT_EQ(StageOf(job, 2), VersionStage::kDropped);
  EXPECT_EQ(WhyOf(job, 2), "node b: /new does not exist");
  job.Hear(12, Env("2", true));
  EXPECT_EQ(job.state.versions[3].version.code, "") << "on top of what runs";
}

// What waits is not wanted any more: what runs is.
TEST(Update, IsTakenBackWhereWhatRunsIsAskedForAgain) {
  Scenario job = OnTrial();
  job.Hear(14, Env("2"));
  UpdateAsked again = Env("1");
  again.takes_back = true;
  EXPECT_EQ(job.Hear(15, again), "");
  EXPECT_EQ(WhyOf(job, 2), "taken back by version 3, which is what runs");
  EXPECT_EQ(WhyOf(job, 3), "version 2 is taken back: version 1 runs on");
  EXPECT_EQ(StatusReport(job.state, Observed{}, job.state.now)["versions"][3]["took_back"], 2);
  job.Hear(16, Env("3"));
  EXPECT_EQ(job.state.versions[4].base, 1) << "not on what was taken back";
}

// Of those that are to be copied, too.
TEST(Update, IsTakenBackBeforeTheNodesHaveItsCode) {
  Scenario job = Trained();
  job.Hear(11, Code("/a", true));
  job.Hear(11.1, CodeKept{1, ""});
  job.Restart(12, Checkpoint(1, 10));
  job.ComeUp(13);
  job.Hear(14, Code("/b"));
  UpdateAsked again = Code("/a");
  again.takes_back = true;
  EXPECT_EQ(job.Hear(15, again), "");
  EXPECT_EQ(StageOf(job, 2), VersionStage::kDropped);
  EXPECT_FALSE(VersionToCopy(job.state));
}

// Whoever wrote that journal went on to run what waited.
TEST(Update, OfAnOldJournalIsNotTakenBack) {
  Scenario job = OnTrial();
  job.Hear(14, Env("2"));
  job.Hear(15, Env("1"));
  EXPECT_EQ(StageOf(job, 2), VersionStage::kWaiting);
  EXPECT_EQ(WhyOf(job, 3), "nothing changes: version 1 runs already");
}

TEST(Update, FallsWithTheOneOnWhichItBuilds) {
  Scenario job = OnTrial();
  job.Hear(14, Env("2"));
  job.Hear(15, Killed(2, 0, SIGSEGV, Step(12, 15), 15));
  job.Restart(16, Checkpoint(2, 12));
  EXPECT_EQ(job.state.running, 0);
  EXPECT_EQ(WhyOf(job, 2), "it builds on version 1, which was bad");
}

TEST(Update, TakesThePlaceOfOneOnTrial) {
  Scenario job = OnTrial();
  job.Hear(14, Env("2", true));
  job.Restart(15, Checkpoint(2, 12));
  EXPECT_EQ(job.state.running, 2);
  EXPECT_EQ(WhyOf(job, 1), "version 2 came before its trial was over");
  EXPECT_EQ(job.state.step_time_before.value, 0.1) << "that of the good one";
  job.ComeUp(16);
  job.Hear(17, Raised(3, 0, "ValueError", Step(14, 17), 17));
  job.Restart(18, Checkpoint(3, 14));
  EXPECT_EQ(job.state.running, 0);
}

TEST(Update, JoinsARestartThatIsUnderWay) {
  Scenario job = Trained();
  job.Hear(11, Killed(1, 2, SIGKILL, Step(11, 11), 11));
  EXPECT_EQ(job.Hear(11.1, Env("1", true)), "");
  job.Restart(12, Checkpoint(1, 11));
  EXPECT_EQ(job.state.running, 1);
  EXPECT_EQ(job.state.restarts, 1);
}

TEST(Update, IsRefusedWithTheReason) {
  JobSpec only_looks = Job();
  only_looks.observe_only = true;
  Scenario observed = Trained(only_looks);
  EXPECT_EQ(observed.Hear(11, Env("1", true)), "");
  EXPECT_THAT(WhyOf(observed, 1), HasSubstr("only observes"));
  JobSpec dry = Job();
  dry.policy.dry_run = true;
  Scenario said = Trained(dry);
  EXPECT_EQ(said.Hear(11, Env("1", true)), "");
  EXPECT_THAT(WhyOf(said, 1), HasSubstr("dry run"));
  Scenario same = OnTrial();
  same.Hear(14, Env("1", true));
  EXPECT_EQ(WhyOf(same, 2), "nothing changes: version 1 runs already");
  Scenario ending = Trained();
  ending.Hear(11, StopAsked{SIGTERM});
  ending.Hear(12, Env("1", true));
  EXPECT_EQ(WhyOf(ending, 1), "the job is ending");
}

TEST(Update, WaitsWhileTheJobIsPaused) {
  Scenario job = Trained();
  job.Hear(11, JobPaused{});
  EXPECT_EQ(job.Hear(12, Env("1", true)), "");
  EXPECT_EQ(job.Hear(13, JobContinued{}), "kill 1 after 0 s, announce 1");
}

TEST(Update, IsNotTakenBackWhereRollbackIsOff) {
  JobSpec spec = Job();
  spec.policy.rollback = false;
  Scenario job = OnTrial(spec);
  job.Hear(14, Raised(2, 0, "ValueError", Step(12, 14), 14));
  job.Restart(15, Checkpoint(2, 12));
  EXPECT_EQ(job.state.running, 1);
}

}  // namespace
}  // namespace lockstep::control
