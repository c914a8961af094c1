#include "lockstep/control/coordinator.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <nlohmann/json.hpp>

#include "lockstep/control/memory_journal.h"
#include "lockstep/control/report.h"
#include "lockstep/control/scenario.h"

namespace lockstep::control {
namespace {

using testing::HasSubstr;

// A server that does not answer: each try takes a second.
class SlowJournal final : public store::Journal {
 public:
  explicit SlowJournal(FakeClock& clock) : clock_(clock) {}
  absl::Status Append(std::vector<store::Event>) override {
    ++tries;
    clock_.Advance(Seconds{1});
    return Unavailable("no answer");
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<store::Event>> Read(int64_t) override { return std::vector<store::Event>(); }
  int tries = 0;

 private:
  FakeClock& clock_;
};

int CountOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class CoordinatorTest : public testing::Test {
 protected:
  std::string Hear(const EventBody& body) {
    clock_.Advance(Seconds{1});
    const auto commands = coordinator_.Handle(body);
    return commands.ok() ? Text(*commands) : Message(commands.status());
  }
  void Train() {
    JobSpec spec;
    spec.ranks = 2;
    Hear(JobStarted{spec});
    Hear(EpochSpawned{EpochId(1)});
    Hear(LoopBegan{EpochId(1), clock_.Now(), std::nullopt});
    Hear(ProgressSeen{EpochId(1), {10, clock_.Now()}});
  }
  // Node b of two, for which somebody stands by.
  void LoseANode() {
    JobSpec spec;
    spec.ranks = 4;
    spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
    spec.standbys = 1;
    Hear(JobStarted{spec});
    Hear(EpochSpawned{EpochId(1)});
    Hear(LoopBegan{EpochId(1), clock_.Now(), std::nullopt});
    Hear(StandbyCame{{"s", 2, "s's"}});
    Hear(AgentLost{1, "b", "its connection was lost", clock_.Now()});
  }
  std::string Seen(const Coordinator& coordinator) {
    return RenderJson(StatusReport(coordinator.state(), Observed{}, clock_.Now())) +
           RenderJson(IncidentsReport(coordinator.state(), clock_.Now()));
  }

  FakeClock clock_;
  MemoryJournal journal_;
  Coordinator coordinator_{journal_, clock_};
};

TEST_F(CoordinatorTest, WritesEveryEventButTicksAndSyncsNothing) {
  Train();
  EXPECT_EQ(Hear(Tick{}), "");
  EXPECT_EQ(Hear(Killed(1, 1, SIGKILL)), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(journal_.rows.size(), 6u);
  EXPECT_EQ(journal_.rows.back().type, "epoch_stopped");
  EXPECT_EQ(journal_.syncs, 0) << "no sync between a crash and the restart";
}

TEST_F(CoordinatorTest, RefusesASpecThatMakesNoSense) {
  JobSpec spec;
  spec.ranks = 0;
  EXPECT_EQ(Hear(JobStarted{spec}), "a job needs at least 1 rank, found 0");
  EXPECT_TRUE(journal_.rows.empty());
}

TEST_F(CoordinatorTest, AFullDiskDoesNotStopTheJob) {
  Train();
  journal_.full = true;
  EXPECT_EQ(Hear(Killed(1, 1, SIGKILL)), "kill 1 after 0 s, announce 1");
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "choose for 2");
  EXPECT_EQ(coordinator_.journal_errors(), 2);
  EXPECT_EQ(coordinator_.events_waiting(), 2);
  journal_.full = false;
  Hear(RestoreChosen{EpochId(2), Checkpoint(1, 10), {}});
  EXPECT_EQ(coordinator_.events_waiting(), 0);
  EXPECT_EQ(journal_.rows.size(), 7u);
  EXPECT_EQ(journal_.rows[5].type, "epoch_stopped") << "in the order in which they came";
}

TEST_F(CoordinatorTest, GivesNoCommandWhenAnotherOneLeads) {
  Train();
  journal_.taken = true;
  EXPECT_EQ(Hear(Killed(1, 1, SIGKILL)), "another coordinator leads");
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "another coordinator leads");
  EXPECT_EQ(journal_.rows.size(), 4u);
}

// Who is out of a job is out for good, so no crash of the journal's machine may forget it.
TEST_F(CoordinatorTest, SyncsWhenAPlaceIsGivenAway) {
  LoseANode();
  EXPECT_EQ(journal_.syncs, 0);
  EXPECT_THAT(Hear(AgentGone{1, "it has not been heard of for 10 s"}), HasSubstr("seat 1"));
  EXPECT_EQ(journal_.syncs, 1);
}

TEST_F(CoordinatorTest, NoPlaceIsGivenAwayBeforeTheJournalHasIt) {
  LoseANode();
  journal_.full = true;
  EXPECT_EQ(Hear(AgentGone{1, "it has not been heard of for 10 s"}), "kill 1 after 0 s");
  EXPECT_TRUE(coordinator_.holds());
  EXPECT_EQ(Hear(Tick{}), "");
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "") << "it is said again";
  journal_.full = false;
  journal_.cannot_sync = true;
  EXPECT_EQ(Hear(Tick{}), "") << "the disk does not have it";
  journal_.cannot_sync = false;
  EXPECT_THAT(Hear(Tick{}), HasSubstr("seat 1"));
  EXPECT_FALSE(coordinator_.holds());
  EXPECT_EQ(journal_.rows.back().type, "agent_gone");
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "choose for 2");
}

TEST_F(CoordinatorTest, AJobThatIsToEndDoesNotWaitForTheJournal) {
  LoseANode();
  journal_.full = true;
  Hear(AgentGone{1, "it has not been heard of for 10 s"});
  EXPECT_EQ(Hear(StopAsked{SIGTERM}), "");
  EXPECT_EQ(Hear(Tick{}), "announce 2, announce 1, announce 2") << "whoever has the place keeps it";
  Hear(Tick{});
  EXPECT_EQ(coordinator_.state().mode, Mode::kFinishing);
}

// Whoever carries this out leads by the state, in which the numbers are the new ones.
TEST_F(CoordinatorTest, AJobThatIsToEndEndsWhereItsNodesCountAnew) {
  JobSpec spec;
  spec.ranks = 4;
  spec.nodes = {{"a", 2, "a's"}, {"b", 2, "b's"}};
  spec.least_nodes = 1;
  spec.most_nodes = 2;
  Hear(JobStarted{spec});
  Hear(AgentLost{0, "a", "its connection was lost", clock_.Now()});
  EXPECT_THAT(Hear(AgentGone{0, "it has not been heard of for 10 s"}), HasSubstr("vacate 0"));
  journal_.full = true;
  EXPECT_EQ(Hear(EpochStopped{EpochId(1)}), "");
  EXPECT_TRUE(coordinator_.holds());
  Hear(StopAsked{SIGTERM});
  EXPECT_THAT(Hear(Tick{}), HasSubstr("resize to 1"));
  EXPECT_EQ(coordinator_.state().mode, Mode::kFinished);
}

TEST_F(CoordinatorTest, NoPlaceWaitsForAJournalThatNobodyWillRead) {
  LoseANode();
  journal_.removed = true;
  EXPECT_THAT(Hear(AgentGone{1, "it has not been heard of for 10 s"}), HasSubstr("seat 1"));
  EXPECT_EQ(coordinator_.journal_errors(), 1);
}

TEST_F(CoordinatorTest, NothingIsHeldBackForAnotherOneThatLeads) {
  LoseANode();
  journal_.full = true;
  Hear(AgentGone{1, "it has not been heard of for 10 s"});
  journal_.full = false;
  journal_.taken = true;
  EXPECT_EQ(Hear(Tick{}), "another coordinator leads");
}

// Events come faster than a server that does not answer.
TEST_F(CoordinatorTest, AJournalThatIsSlowToFailIsTriedLessOften) {
  Train();
  SlowJournal slow(clock_);
  Coordinator coordinator(slow, clock_);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(coordinator.Handle(Killed(1, 0, SIGKILL)).ok());
    ASSERT_TRUE(coordinator.Handle(ProgressSeen{EpochId(1), {i, clock_.Now()}}).ok());
    clock_.Advance(Seconds{0.1});
  }
  EXPECT_EQ(slow.tries, 2) << "1 s, and then 4 s in which nobody waits for it";
}

TEST_F(CoordinatorTest, SaysWhenTheJournalFailsAndWhenItDoesNotAnyMore) {
  Train();
  testing::internal::CaptureStderr();
  for (int outage = 0; outage < 2; ++outage) {
    journal_.full = true;
    for (int i = 0; i < 3; ++i) Hear(ProgressSeen{EpochId(1), {20 + i, clock_.Now()}});
    journal_.full = false;
    Hear(Tick{});
    Hear(Tick{});
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(CountOf(said, "the journal cannot be written: the disk is full"), 2) << said;
  EXPECT_EQ(CountOf(said, "the journal can be written again"), 2) << said;
}

TEST_F(CoordinatorTest, EndsOfRanksAreWrittenTogether) {
  JobSpec spec;
  spec.ranks = 1'000;
  Hear(JobStarted{spec});
  Hear(EpochSpawned{EpochId(1)});
  Hear(Killed(1, 0, SIGKILL));
  const int before = journal_.appends;
  for (int rank = 1; rank < 999; ++rank) EXPECT_EQ(Hear(Killed(1, rank, SIGKILL)), "");
  EXPECT_EQ(journal_.appends, before);
  Hear(Tick{});
  EXPECT_EQ(journal_.appends, before + 1);
  EXPECT_EQ(journal_.rows.size(), 1'001u);
  Hear(Tick{});
  Hear(Killed(1, 999, SIGKILL));
  Hear(EpochStopped{EpochId(1)});
  EXPECT_EQ(journal_.appends, before + 2);
  EXPECT_EQ(journal_.rows[1'001].type, "rank_exited");
  EXPECT_EQ(journal_.rows[1'002].type, "epoch_stopped");
}

// All ranks of a large job may end at once, and each append takes along all that wait.
TEST_F(CoordinatorTest, AJournalThatFailsIsNotTriedAtEachEvent) {
  Train();
  journal_.full = true;
  Hear(Killed(1, 1, SIGKILL));
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(coordinator_.Handle(Killed(1, 0, SIGKILL)).ok());
  EXPECT_EQ(coordinator_.journal_errors(), 1);
  EXPECT_EQ(coordinator_.events_waiting(), 101);
  journal_.full = false;
  Hear(EpochStopped{EpochId(1)});
  EXPECT_EQ(coordinator_.events_waiting(), 0);
  EXPECT_EQ(journal_.rows.back().type, "epoch_stopped");
  Hear(StopAsked{SIGTERM});
  journal_.full = true;
  Hear(StopAsked{SIGTERM});
  journal_.full = false;
  ASSERT_TRUE(coordinator_.Handle(EpochStopped{EpochId(1)}).ok());
  EXPECT_EQ(coordinator_.state().mode, Mode::kFinished);
  EXPECT_EQ(coordinator_.events_waiting(), 0) << "who ends tries once more";
}

TEST_F(CoordinatorTest, GivesUpOnlyProgressMarksWhenTooManyWait) {
  Train();
  journal_.full = true;
  for (int64_t step = 11; step < 1'211; ++step) Hear(ProgressSeen{EpochId(1), {step, clock_.Now()}});
  EXPECT_EQ(coordinator_.events_dropped(), 200);
  Hear(Killed(1, 1, SIGKILL, {1'211, clock_.Now()}));
  EXPECT_EQ(coordinator_.events_waiting(), 1'001);
  journal_.full = false;
  Hear(EpochStopped{EpochId(1)});
  const auto resumed = Coordinator::Resume(journal_, clock_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(resumed->coordinator->state().frontier, 1'211);
}

TEST_F(CoordinatorTest, ResumesAndAsksAgain) {
  Train();
  Hear(Killed(1, 1, SIGKILL));
  clock_.Advance(Seconds{5});
  auto resumed = Coordinator::Resume(journal_, clock_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(Text(resumed->commands), "announce 2, kill 1 after 0 s");
  const incident::Incident& gap = resumed->coordinator->state().incidents[1];
  EXPECT_DOUBLE_EQ(ToSeconds(gap.closed - gap.opened).value, 5);
  EXPECT_EQ(Text(*resumed->coordinator->Handle(EpochStopped{EpochId(1)})), "choose for 2");
}

TEST_F(CoordinatorTest, WasGoneSinceItsEndWhereThatWasNoted) {
  Train();
  const Nanos last = clock_.Now();
  clock_.Advance(Seconds{4});
  const Nanos noted = clock_.Now();
  clock_.Advance(Seconds{1});
  const auto gap = [this](Nanos watched) {
    MemoryJournal copy = journal_;
    const auto resumed = Coordinator::Resume(copy, clock_, watched);
    return resumed.ok() ? resumed->coordinator->state().incidents.back() : incident::Incident{};
  };
  EXPECT_EQ(gap(noted).opened, noted);
  EXPECT_THAT(incident::Headline(gap(noted)), HasSubstr("nobody watched for 1.000 s"));
  for (const Nanos not_of_this : {Nanos{}, last - ToNanos(Seconds{1}), clock_.Now() + ToNanos(Seconds{1})}) {
    EXPECT_EQ(gap(not_of_this).opened, last) << not_of_this.value;
    EXPECT_THAT(incident::Headline(gap(not_of_this)), HasSubstr("nobody watched for up to 5.000 s"));
  }
}

TEST_F(CoordinatorTest, WhileNobodyLedNobodyWasAwaited) {
  JobSpec spec;
  spec.ranks = 2;
  spec.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
  spec.can_ask = true;
  Hear(JobStarted{spec});
  Hear(EpochSpawned{EpochId(1)});
  Hear(LoopBegan{EpochId(1), clock_.Now(), std::nullopt});
  Hear(AgentLost{1, "b", "its connection was lost", clock_.Now()});
  clock_.Advance(Seconds{11});
  Hear(AgentGone{1, "it has not been heard of for 11 s"});
  ASSERT_TRUE(coordinator_.state().awaited.contains(1));
  const Nanos until = GoneAt(coordinator_.state(), 1, Nanos{});
  clock_.Advance(Seconds{100});
  const auto resumed = Coordinator::Resume(journal_, clock_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  EXPECT_EQ(GoneAt(resumed->coordinator->state(), 1, Nanos{}), until + ToNanos(Seconds{100}));
}

TEST_F(CoordinatorTest, AReplayShowsTheSameReports) {
  Train();
  RankExited odd = Raised(1, 1, "ValueError");
  odd.exception->message = "bytes that are not UTF-8: \xff\xfe";
  Hear(odd);
  Hear(EpochStopped{EpochId(1)});
  Hear(RestoreChosen{EpochId(2), Checkpoint(1, 9), {}});
  const Nanos last = clock_.Now();
  clock_.Advance(Seconds{1});
  MemoryJournal copy = journal_;
  const auto resumed = Coordinator::Resume(copy, clock_);
  ASSERT_TRUE(resumed.ok()) << resumed.status();
  ASSERT_TRUE(coordinator_.Handle(WatcherGone{last}).ok());
  EXPECT_EQ(Seen(*resumed->coordinator), Seen(coordinator_));
}

TEST_F(CoordinatorTest, WhatCannotBeResumedSaysWhy) {
  EXPECT_THAT(Message(Coordinator::Resume(journal_, clock_).status()), HasSubstr("the journal is empty"));
  Train();
  FakeClock rebooted;
  EXPECT_THAT(Message(Coordinator::Resume(journal_, rebooted).status()), HasSubstr("this machine was restarted"));
  journal_.rows[1].payload = "{\"epoch\":";
  EXPECT_EQ(Message(Coordinator::Resume(journal_, clock_).status()),
            "event 2 of the journal cannot be read: epoch_spawned: the payload is not JSON");
}

}  // namespace
}  // namespace lockstep::control
