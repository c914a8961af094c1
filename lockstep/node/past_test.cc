// Journals on disk, written by the coordinator as in a run, and read back by the report.
#include "lockstep/node/past.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/agent/last_watched.h"
#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_spec.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PastTest : public testing::Test {
 protected:
  std::string Directory(const std::string& name) const {
    fs::create_directories(root_ / name);
    return root_ / name;
  }

  // Ten seconds of training, a crash of rank 1, and a restart that takes two; step 20 at the end.
  void WriteRun(const std::string& name, bool drilled = false) const {
    FakeClock clock;
    const auto journal = store::OpenSqliteJournal(Directory(name) + "/journal.sqlite", store::JournalMode::kWrite);
    ASSERT_TRUE(journal.ok()) << Message(journal.status());
    control::Coordinator coordinator(**journal, clock);
    const auto hear = [&](double after, const control::EventBody& body) {
      clock.Advance(Seconds{after});
      ASSERT_TRUE(coordinator.Handle(body).ok());
    };
    const auto come_up = [&](uint64_t epoch, std::optional<control::CheckpointId> from) {
      hear(1, control::EpochSpawned{EpochId(epoch)});
      hear(0, control::LoopBegan{EpochId(epoch), clock.Now(), from});
    };
    control::JobSpec spec;
    spec.name = name;
    spec.ranks = 2;
    hear(0, control::JobStarted{spec});
    come_up(1, std::nullopt);
    hear(10, control::ProgressSeen{EpochId(1), {10, clock.Now() + ToNanos(Seconds{10})}});
    if (drilled) hear(0, control::Drilled{EpochId(1), "kill", 1});
    hear(0, control::RankExited{EpochId(1), RankId(1), {0, SIGKILL}, std::nullopt, {}, clock.Now()});
    hear(1, control::EpochStopped{EpochId(1)});
    const control::CheckpointId point{EpochId(1), 10};
    hear(0, control::RestoreChosen{EpochId(2), point, {}});
    come_up(2, point);
    hear(10, control::ProgressSeen{EpochId(2), {20, clock.Now() + ToNanos(Seconds{10})}});
  }

  const TestFolder root_;
};

TEST_F(PastTest, FindsRunsAtAnyDepthAndNamesWhatItCannotRead) {
  WriteRun("b/2026/x");
  WriteRun("a");
  WriteRun("a/inside");  // a run's own affair
  ASSERT_TRUE(WriteFileAtomically(Directory("attended") + "/run.json", "{}").ok());
  ASSERT_TRUE(WriteFileAtomically(Directory("damaged") + "/journal.sqlite", "no database at all, but long").ok());
  Directory("empty/folder");
  const auto past = ReadPast({root_.path(), root_ / "a", root_ / "nowhere", root_ / "empty"});
  ASSERT_TRUE(past.ok()) << Message(past.status());
  ASSERT_EQ(past->runs.size(), 2u);
  EXPECT_EQ(past->runs[0].path, root_ / "a");
  EXPECT_EQ(past->runs[1].path, root_ / "b/2026/x");
  EXPECT_EQ(past->without_journal, 1);
  std::vector<std::string> unread;
  for (const auto& [path, why] : past->unread) unread.push_back(fs::path(path).filename().string() + ": " + why);
  EXPECT_THAT(unread,
              testing::ElementsAre(HasSubstr("nowhere: No such file"),
                                   HasSubstr("empty: holds no run: no journal.sqlite"), HasSubstr("damaged: ")));
}

// Its watcher went on for three seconds after the newest event, and then was gone.
TEST_F(PastTest, ARunCountsUpToWhenItWasWatchedLast) {
  WriteRun("a");
  const std::string run = root_ / "a";
  const auto wall = [&] { return (*QueryStatus(run))["ettr"]["wall_s"].get<double>(); };
  const Nanos last = Replay(run)->last;
  const double before = wall();
  ASSERT_TRUE(agent::NoteUnwatched(run, last - ToNanos(Seconds{1})).ok());
  EXPECT_DOUBLE_EQ(wall(), before) << "another one, which was gone before";
  ASSERT_TRUE(agent::NoteUnwatched(run, last + ToNanos(Seconds{3})).ok());
  EXPECT_NEAR(wall(), before + 3, 1e-9);
  const Json report = history::ClusterReport(*ReadPast({run}), {});
  EXPECT_EQ(report["costliest_runs"][0]["ettr"], (*QueryStatus(run))["ettr"]["cumulative"]);
}

TEST_F(PastTest, AJournalThatSeveralCoordinatorsShareIsReadOnce) {
  for (const char* name : {"first", "second"}) {
    agent::RunSpec spec;
    spec.run_dir = Directory(name);
    spec.job = "gpt";
    spec.journal = "postgresql:///postgres?host=" + root_.path();
    ASSERT_TRUE(KeepSpec(spec).ok());
  }
  WriteRun("other");
  const auto past = ReadPast({root_.path()});
  ASSERT_TRUE(past.ok()) << Message(past.status());
  EXPECT_EQ(past->unread.size(), 1u) << "no server is there";
}

// The report and `lockstep status` read one ledger.
TEST_F(PastTest, TheReportAgreesWithStatus) {
  WriteRun("real");
  WriteRun("rehearsed", true);
  const auto past = ReadPast({root_.path()});
  ASSERT_TRUE(past.ok()) << Message(past.status());
  const Json report = history::ClusterReport(*past, {});
  for (const Json& run : report["costliest_runs"]) {
    const auto status = QueryStatus(run["run"].get<std::string>());
    ASSERT_TRUE(status.ok()) << Message(status.status());
    EXPECT_EQ(run["ettr"], (*status)["ettr"]["cumulative"]);
    EXPECT_EQ(run["ettr_sliding_1h"], (*status)["ettr"]["sliding_1h"]);
    EXPECT_EQ(run["incidents"], (*status)["incidents"]);
  }
  EXPECT_EQ(report["incidents"][0]["count"], 1) << "the other was a drill";
  EXPECT_EQ(report["resolution"][0]["resolution_mean_s"], 2.0);
  EXPECT_EQ(report["drills"]["incidents"], 1);
  EXPECT_EQ(RenderJson(report), RenderJson(history::ClusterReport(*ReadPast({root_ / "rehearsed", root_.path()}), {})));
}

TEST_F(PastTest, NoRunAtAllIsAnError) {
  EXPECT_THAT(Message(ReadPast({root_.path()}).status()), HasSubstr("there is no run to report of"));
  const std::string attended = Directory("attended");
  ASSERT_TRUE(WriteFileAtomically(attended + "/run.json", "{}").ok());
  EXPECT_THAT(Message(ReadPast({attended}).status()), HasSubstr("1 attended jobs that another node led"));
}

}  // namespace
}  // namespace lockstep::node
