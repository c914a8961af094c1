#include "lockstep/node/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"
#include "lockstep/control/memory_journal.h"

namespace lockstep::node {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class HeadOfTwoNodes : public testing::Test {
 protected:
  HeadOfTwoNodes() {
    Head first(options_, clock_, Listener());
    first.Keep(Journal());
    control::JobSpec job;
    job.name = "job";
    job.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
    job.ranks = 2;
    EXPECT_TRUE(first.Begin(job).ok());
  }

  std::unique_ptr<store::Journal> Journal() {
    return *store::OpenSqliteJournal(folder_ / "journal.sqlite", store::JournalMode::kWrite);
  }
  Head::Listener Listener() {
    return {.tell = [this](int node, const control::Told& told) { told_.emplace_back(node, told); },
            .seat = [](const control::Seat&) {},
            .vacate = [](const control::Vacate&) {},
            .resize = [](const std::vector<int>&) {},
            .anew = [] {},
            .line = [this](const std::string& text) { lines_.push_back(text); }};
  }

  const TestFolder folder_;
  RunOptions options_;
  FakeClock clock_;
  std::vector<std::string> lines_;
  std::vector<std::pair<int, control::Told>> told_;
};

// Epoch 1 trains on both nodes, and its newest checkpoint is that of step 30.
class TrainingOnTwoNodes : public HeadOfTwoNodes {
 protected:
  TrainingOnTwoNodes() {
    head_.Keep(Journal());
    EXPECT_TRUE(head_.Resume().ok());
    clock_.Advance(Seconds{1});
    for (const int node : {0, 1}) head_.Hear(node, control::Said(control::AllSaid{}));
    for (const int node : {0, 1}) head_.Hear(node, control::Said(control::EventBody(control::EpochSpawned{kOne})));
    for (const int node : {0, 1})
      head_.Hear(node, control::Said(control::EventBody(control::LoopBegan{kOne, clock_.Now(), {}})));
    Step(30);
    for (const int node : {0, 1}) Hold(node, 30);
    Observe(0, 30);
    Observe(1, 29);
    EXPECT_EQ(head_.state().mode, control::Mode::kRunning);
  }
  void Step(int64_t step) {
    clock_.Advance(Seconds{0.1});
    for (const int node : {0, 1})
      head_.Hear(node, control::Said(control::Samples{kOne, {}, {}, control::Progress{step, clock_.Now()}}));
  }
  void Hold(int node, int64_t step) {
    head_.Hear(node, control::Said(control::Holding{kOne, {{kOne, step}}, {}, step}));
    head_.Tick();
  }
  void Observe(int node, int64_t committed) {
    control::Observed observed;
    observed.committed = control::CheckpointId{kOne, committed};
    observed.checkpoint_age = Seconds{0.25};
    head_.Hear(node, control::Said(observed));
  }
  void BackAgain(int node) { head_.Hear(node, control::Said(control::AllSaid{kOne})); }
  // The newest that both were told.
  std::optional<control::Commit> Told(int node) const {
    std::optional<control::Commit> newest;
    for (const auto& [to, told] : told_)
      if (const auto* commit = std::get_if<control::Commit>(&told); commit && to == node) newest = *commit;
    return newest;
  }

  static constexpr EpochId kOne{1};
  Head head_{options_, clock_, Listener()};
};

TEST_F(TrainingOnTwoNodes, AnnounceAnIncidentInOneLineThatSteersNoTerminal) {
  control::RankExited exited;
  exited.epoch = kOne;
  exited.rank = RankId(1);
  exited.status.code = 1;
  exited.exception = control::ExceptionInfo{"RuntimeError", "bad \033[31m\nvalue", "train.py:41 in forward", false};
  head_.Hear(1, control::Said(control::EventBody(exited)));
  EXPECT_THAT(lines_, Contains(HasSubstr(": bad  [31m value")));
}

TEST_F(TrainingOnTwoNodes, WhenOnlyRanksOfANodeThatIsAwayAreLeftItIsSaidForWhatTheJobWaits) {
  const auto waits = AllOf(HasSubstr("the agent of node b has not come back: waits until "),
                           HasSubstr(", for the ranks there may run on; `lockstep run --resume` there goes on with"));
  clock_.Advance(Seconds{3});
  head_.Tick();
  head_.Lost(1, "its connection was lost");
  clock_.Advance(Seconds{3});
  head_.Tick();
  EXPECT_THAT(lines_, Not(Contains(waits))) << "training goes on";
  control::RankExited exited;
  exited.epoch = kOne;
  exited.rank = RankId(0);
  head_.Hear(0, control::Said(control::EventBody(exited)));
  for (int i = 0; i < 3; ++i) head_.Tick();
  EXPECT_THAT(lines_, Contains(waits).Times(1));
}

TEST_F(TrainingOnTwoNodes, WhileAnAgentIsAwayWhatAFaultCostsIsSaidOnce) {
  const auto said =
      HasSubstr("no checkpoint becomes whole while the agent of node b is away: a fault now costs the steps since 30");
  head_.Lost(1, "its connection was lost");
  head_.Tick();
  EXPECT_THAT(lines_, Not(Contains(said))) << "it may be on its way";
  for (int i = 0; i < 5; ++i) {
    clock_.Advance(Seconds{1});
    Step(40 + i);
    head_.Tick();
  }
  EXPECT_THAT(lines_, Contains(said).Times(1));
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json({"b"}));
  BackAgain(1);
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json::array());
}

// All attend, and nobody has trouble: nothing else would tell.
TEST_F(TrainingOnTwoNodes, WhoHoldsUpACheckpointIsToldWhileTheJobSteps) {
  Hold(0, 31);
  head_.Hear(1, control::Said(control::Holding{kOne, {{kOne, 30}}, {{kOne, 31}}, 31}));
  head_.Tick();
  clock_.Advance(Seconds{15});
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json::array()) << "it stands with the job";
  Step(40);
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json({"b"}));
  Hold(1, 31);
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json::array());
  head_.Hear(1, control::Said(control::Holding{kOne, {{kOne, 31}}, {{kOne, 32}}, 31}));
  head_.Tick();
  Step(41);
  EXPECT_EQ(head_.Status()["checkpoint"]["waits_for"], Json::array()) << "a new one";
}

TEST_F(TrainingOnTwoNodes, TheAgeOfACheckpointGrowsWhileANodeIsAway) {
  head_.Lost(1, "its connection was lost");
  clock_.Advance(Seconds{50});
  EXPECT_NEAR(head_.Status()["checkpoint"]["age_s"].get<double>(), 50.25, 1e-6);
}

TEST_F(TrainingOnTwoNodes, WhenTheLastIsBackAllMeetFromWhereTheJobStands) {
  for (const int node : {0, 1}) head_.Lost(node, "its connection was lost");
  Step(500);
  BackAgain(0);
  EXPECT_EQ(Told(0)->meet_from, 0) << "one is still away";
  BackAgain(1);
  for (const int node : {0, 1}) EXPECT_EQ(Told(node)->meet_from, 500);
}

TEST_F(TrainingOnTwoNodes, AnUpdateAtOnceWaitsForACheckpointThatIsNear) {
  head_.Lost(1, "its connection was lost");
  Step(500);
  head_.Update({.env = {{"A", "1"}}, .now = true});
  EXPECT_THAT(lines_,
              Contains(HasSubstr("version 1 waits until a checkpoint is whole on all nodes, for 10 s at most")));
  BackAgain(1);
  for (const int node : {0, 1}) Hold(node, 30);
  EXPECT_EQ(head_.state().mode, control::Mode::kRunning) << "the one that there was";
  Step(501);
  for (const int node : {0, 1}) Hold(node, 501);
  EXPECT_EQ(head_.state().mode, control::Mode::kStopping);
  EXPECT_EQ(head_.state().fault.plan.symptom, control::Symptom::kUpdate);
}

TEST_F(TrainingOnTwoNodes, AnUpdateAtOnceWaitsForACheckpointNotForLong) {
  head_.Lost(1, "its connection was lost");
  head_.Update({.env = {{"A", "1"}}, .now = true});
  clock_.Advance(Seconds{9.9});
  head_.Tick();
  EXPECT_EQ(head_.state().mode, control::Mode::kRunning);
  clock_.Advance(Seconds{0.2});
  head_.Tick();
  EXPECT_EQ(head_.state().mode, control::Mode::kStopping);
}

TEST_F(TrainingOnTwoNodes, AnUpdateThatFallsDueWaitsForACheckpointThatIsNear) {
  head_.Lost(1, "its connection was lost");
  head_.Update({.env = {{"A", "1"}}, .within = Seconds{5}});
  clock_.Advance(Seconds{5.1});
  head_.Tick();
  EXPECT_EQ(head_.state().mode, control::Mode::kRunning);
  BackAgain(1);
  Step(501);
  for (const int node : {0, 1}) Hold(node, 501);
  EXPECT_EQ(head_.state().mode, control::Mode::kStopping);
}

TEST_F(TrainingOnTwoNodes, AnUpdateThatFallsDueWaitsForACheckpointNotForLong) {
  head_.Lost(1, "its connection was lost");
  head_.Update({.env = {{"A", "1"}}, .within = Seconds{5}});
  clock_.Advance(Seconds{14.9});
  head_.Tick();
  EXPECT_EQ(head_.state().mode, control::Mode::kRunning);
  clock_.Advance(Seconds{0.2});
  head_.Tick();
  EXPECT_EQ(head_.state().mode, control::Mode::kStopping);
}

TEST_F(TrainingOnTwoNodes, AnUpdateAtOnceIsMadeAtOnceWhereCheckpointsAreWhole) {
  head_.Update({.env = {{"A", "1"}}, .now = true});
  EXPECT_EQ(head_.state().mode, control::Mode::kStopping);
}

TEST_F(HeadOfTwoNodes, AnUpdateAtOnceIsMadeAtOnceBeforeTheFirstCheckpointToo) {
  Head head(options_, clock_, Listener());
  head.Keep(Journal());
  ASSERT_TRUE(head.Resume().ok());
  for (const int node : {0, 1}) head.Hear(node, control::Said(control::AllSaid{}));
  for (const int node : {0, 1}) head.Hear(node, control::Said(control::EventBody(control::EpochSpawned{EpochId(1)})));
  for (const int node : {0, 1})
    head.Hear(node, control::Said(control::EventBody(control::LoopBegan{EpochId(1), clock_.Now(), {}})));
  ASSERT_EQ(head.state().mode, control::Mode::kRunning);
  head.Update({.env = {{"A", "1"}}, .now = true});
  EXPECT_EQ(head.state().mode, control::Mode::kStopping);
}

// Tells when something is wanted of a scheduler.
class SomeDriver final : public schedule::Driver {
 public:
  explicit SomeDriver(std::function<void()> told) : told_(std::move(told)) {}
  void Want(const schedule::Wanted&) override { told_(); }
  std::vector<schedule::Outcome> TakeOutcomes() override { return {}; }
  schedule::Counts counts() const override { return {}; }
  void End() override {}
  absl::Status Requeue() override { return absl::OkStatus(); }

 private:
  const std::function<void()> told_;
};

// Node b is silent, a standby is to have its place, and the disk of the journal is full.
class HeadThatWaitsForItsJournal : public HeadOfTwoNodes {
 protected:
  HeadThatWaitsForItsJournal() {
    auto journal = std::make_unique<control::MemoryJournal>();
    journal_ = journal.get();
    head_.Keep(std::move(journal));
    head_.Use(std::make_unique<Scheduler>(
        std::make_unique<SomeDriver>([this] { ++(head_.CheckHears().ok() ? told_ : told_too_early_); })));
    control::JobSpec job;
    job.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
    job.ranks = 2;
    job.standbys = 1;
    EXPECT_TRUE(head_.Begin(job).ok());
    Run(0);
    Run(1);
    Count(0, 1000, 3);
    Count(1, 900, 2);
    head_.Handle(control::StandbyCame{{"s", 1, "s's"}});
    journal_->full = true;
    head_.Lost(1, "its connection was lost");
    for (int i = 0; i < 100 && head_.CheckHears().ok(); ++i) PassASecond();
    EXPECT_EQ(Message(head_.CheckHears()), "the job waits for its journal, which cannot be written: ask again");
  }
  void Run(int node) {
    head_.Hear(node, control::Said(control::AllSaid{}));
    head_.Hear(node, control::Said(control::EventBody(control::EpochSpawned{kOne})));
    head_.Hear(node, control::Said(control::EventBody(control::LoopBegan{kOne, clock_.Now(), {}})));
  }
  void Count(int node, int64_t taken, int64_t records_unwritten) {
    control::Observed observed;
    observed.checkpoints = taken;
    observed.records_unwritten = records_unwritten;
    head_.Hear(node, control::Said(observed));
  }
  void PassASecond() {
    clock_.Advance(Seconds{1});
    head_.Tick();
  }
  void EmptyTheDisk() {
    journal_->full = false;
    PassASecond();
    EXPECT_TRUE(head_.CheckHears().ok());
  }
  Json Taken() const { return head_.Status()["checkpoint"]["taken"]; }

  static constexpr EpochId kOne{1};
  int told_ = 0, told_too_early_ = 0;  // the scheduler
  control::MemoryJournal* journal_ = nullptr;
  Head head_{options_, clock_, Listener()};
};

TEST_F(HeadThatWaitsForItsJournal, SaysSo) {
  EXPECT_EQ(head_.Status().value("trouble", ""),
            "the job waits for its journal, which must have the change of its nodes first, and cannot be written: the "
            "disk is full");
  EmptyTheDisk();
  EXPECT_FALSE(head_.Status().contains("trouble"));
}

TEST_F(HeadThatWaitsForItsJournal, CountsFallNeither) {
  EXPECT_EQ(Taken(), 1900);
  EmptyTheDisk();
  ASSERT_EQ(head_.state().spec.nodes.at(1).name, "s");
  EXPECT_EQ(Taken(), 1900) << "nobody has said any again";
  EXPECT_EQ(head_.Status()["records"]["dropped"], 5);
  Count(0, 1001, 0);
  EXPECT_EQ(Taken(), 1901) << "the agent of a goes on, or is a new one that knows the board";
  EXPECT_EQ(head_.Status()["records"]["dropped"], 5);
  Count(1, 7, 1);
  EXPECT_EQ(Taken(), 1908);
  EXPECT_EQ(head_.Status()["records"]["dropped"], 6);
}

TEST_F(HeadThatWaitsForItsJournal, ADrillIsWrittenDownWhenItCanBe) {
  head_.Hear(0, control::Said(control::EventBody(control::Drilled{kOne, "hang", 0})));
  EXPECT_TRUE(head_.state().drills.empty());
  EmptyTheDisk();
  PassASecond();
  ASSERT_EQ(head_.state().drills.size(), 1U);
  EXPECT_EQ(head_.state().drills.front().what.rank, 0);
}

TEST_F(HeadThatWaitsForItsJournal, TheSchedulerIsToldNothingBeforeTheJournal) {
  const int before = told_;
  EXPECT_GT(before, 0) << "while the node was lost";
  PassASecond();
  EXPECT_EQ(told_too_early_, 0);
  EmptyTheDisk();
  PassASecond();
  EXPECT_GT(told_, before);
}

TEST_F(HeadOfTwoNodes, WhoTakesOverSaysForWhomItWaitsAndNamesAllThatAreLost) {
  Head head(options_, clock_, Listener());
  head.Keep(Journal());
  ASSERT_TRUE(head.Resume().ok());
  const auto absent = HasSubstr("of node a, b have not come back: waits until 1970-01-01T00:01:06.000Z");
  head.Tick();
  EXPECT_THAT(lines_, Not(Contains(absent))) << "they may be on their way";
  clock_.Advance(Seconds{2});
  head.Tick();
  EXPECT_THAT(lines_, Contains(absent).Times(1));
  clock_.Advance(Seconds{63});
  head.Tick();
  EXPECT_EQ(head.state().verdict, "node a is lost: its agent has not been heard of for 65 s; nor of node b");
}

TEST_F(HeadOfTwoNodes, AStopSaysForWhomItWaitsWhoeverLedBefore) {
  Head head(options_, clock_, Listener());
  head.Keep(std::make_unique<control::MemoryJournal>());
  control::JobSpec job;
  job.nodes = {{"a", 1, "a's"}, {"b", 1, "b's"}};
  job.ranks = 2;
  ASSERT_TRUE(head.Begin(job).ok());
  for (const int node : {0, 1}) head.Hear(node, control::Said(control::AllSaid{}));
  head.Lost(1, "its connection was lost");
  head.Handle(control::EventBody(control::StopAsked{SIGTERM}));
  EXPECT_THAT(lines_, Contains(HasSubstr("of node b has not come back: waits until")));
}

TEST_F(HeadOfTwoNodes, AStopSaysForWhomItWaits) {
  Head head(options_, clock_, Listener());
  head.Keep(Journal());
  ASSERT_TRUE(head.Resume().ok());
  head.Hear(0, control::Said(control::AllSaid{}));
  head.Handle(control::EventBody(control::StopAsked{SIGTERM}));
  EXPECT_THAT(lines_, Contains(HasSubstr("of node b has not come back: waits until")));
}

}  // namespace
}  // namespace lockstep::node
