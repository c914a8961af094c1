#include "lockstep/store/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::store {
namespace {

class JournalTest : public testing::Test {
 protected:
  const TestFolder folder_;
  const std::string path_ = folder_ / "journal.sqlite";
};

Event Numbered(int64_t number) { return {{number * 10}, {number * 100}, "step", std::to_string(number)}; }

std::unique_ptr<Journal> Open(const std::string& path, JournalMode mode = JournalMode::kWrite) {
  auto journal = OpenSqliteJournal(path, mode);
  EXPECT_TRUE(journal.ok()) << journal.status();
  return journal.ok() ? std::move(*journal) : nullptr;
}

// A forked child that runs `work` and never returns. `told` is the reading end of a pipe whose writing end `work` gets.
struct Child {
  template <typename Work>
  explicit Child(Work work) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
      close(ends[0]);
      work(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    told = Fd(ends[0]);
  }
  ~Child() { Kill(); }
  void Kill() {
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    pid = -1;
  }
  // The next number that the child told; -1 when it is gone.
  int64_t Next() {
    int64_t number = 0;
    return read(told.get(), &number, sizeof(number)) == sizeof(number) ? number : -1;
  }

  pid_t pid = -1;
  Fd told;
};

void Tell(int fd, int64_t number) {
  if (write(fd, &number, sizeof(number)) < 0) _exit(2);
}

TEST_F(JournalTest, GivesBackWhatWasAppended) {
  auto journal = Open(path_);
  ASSERT_TRUE(journal->Append({Numbered(1), Numbered(2)}).ok());
  ASSERT_TRUE(journal->Append({{{7}, {8}, "odd \"type\"", std::string("nul\0inside\n", 11)}}).ok());
  const auto events = *journal->Read(0);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].sequence, 2);
  EXPECT_EQ(events[1].at.value, 20);
  EXPECT_EQ(events[1].wall.value, 200);
  EXPECT_EQ(events[2].type, "odd \"type\"");
  EXPECT_EQ(events[2].payload, std::string("nul\0inside\n", 11));
  EXPECT_EQ(journal->Read(2)->size(), 1u);
  EXPECT_TRUE(journal->Read(3)->empty());
}

TEST_F(JournalTest, SequencesGoOnAfterReopening) {
  ASSERT_TRUE(Open(path_)->Append({Numbered(1)}).ok());
  auto journal = Open(path_);
  ASSERT_TRUE(journal->Append({Numbered(2)}).ok());
  ASSERT_TRUE(journal->Sync().ok());
  EXPECT_EQ(journal->Read(0)->back().sequence, 2);
}

TEST_F(JournalTest, ReadersFollowAWriter) {
  auto writer = Open(path_);
  auto reader = Open(path_, JournalMode::kRead);
  EXPECT_TRUE(reader->Read(0)->empty());
  ASSERT_TRUE(writer->Append({Numbered(1)}).ok());
  EXPECT_EQ(reader->Read(0)->size(), 1u);
  EXPECT_EQ(reader->Append({Numbered(2)}).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JournalTest, ManyThreadsAppendWithoutHoles) {
  auto journal = Open(path_);
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) EXPECT_TRUE(journal->Append({Numbered(i)}).ok());
      });
    }
  }
  EXPECT_EQ(journal->Read(0)->size(), 400u);  // Read itself refuses holes
}

TEST_F(JournalTest, SurvivesKillInTheMiddleOfAppends) {
  int64_t told = 0;
  {
    Child child([&](int pipe) {
      auto journal = Open(path_);
      for (int64_t i = 1;; ++i) {
        if (!journal->Append({Numbered(i), Numbered(i)}).ok()) _exit(1);
        Tell(pipe, i);
      }
    });
    while (told < 300) told = child.Next();
    child.Kill();
    for (int64_t more = child.Next(); more > 0; more = child.Next()) told = more;
  }
  auto journal = Open(path_);  // the lock died with the child
  ASSERT_NE(journal, nullptr);
  const auto events = *journal->Read(0);
  ASSERT_GE(events.size(), static_cast<size_t>(2 * told));
  EXPECT_EQ(events.size() % 2, 0u) << "half a transaction";
  for (const Event& event : events) EXPECT_EQ(event.payload, std::to_string((event.sequence + 1) / 2));
  EXPECT_TRUE(journal->Append({Numbered(1)}).ok());
}

TEST_F(JournalTest, ASecondWriterIsRefusedByName) {
  Child child([&](int pipe) {
    auto journal = Open(path_);
    Tell(pipe, 1);
    pause();
  });
  ASSERT_EQ(child.Next(), 1);
  const auto second = OpenSqliteJournal(path_, JournalMode::kWrite);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(second.status()).find(fmt::format("held by process {}", child.pid)), std::string::npos)
      << Message(second.status());
}

TEST_F(JournalTest, ASecondWriterInTheSameProcessIsRefusedToo) {
  auto first = Open(path_);
  EXPECT_EQ(OpenSqliteJournal(path_, JournalMode::kWrite).status().code(), absl::StatusCode::kFailedPrecondition);
  // The refusal took nothing from the first: another process is still kept out.
  Child child([&](int pipe) { Tell(pipe, OpenSqliteJournal(path_, JournalMode::kWrite).ok() ? 1 : 2); });
  EXPECT_EQ(child.Next(), 2);
}

TEST_F(JournalTest, RefusesWhatIsNoJournal) {
  ASSERT_TRUE(WriteFileAtomically(path_, "this is a letter, " + std::string(5000, 'x')).ok());
  for (const JournalMode mode : {JournalMode::kRead, JournalMode::kWrite}) {
    const auto journal = OpenSqliteJournal(path_, mode);
    EXPECT_EQ(Message(journal.status()), path_ + " is not a Lockstep journal: file is not a database");
  }
  EXPECT_EQ(ReadFile(path_)->size(), 5018u);
}

TEST_F(JournalTest, AMissingOneIsNotFound) {
  const auto journal = OpenSqliteJournal(path_, JournalMode::kRead);
  EXPECT_EQ(journal.status().code(), absl::StatusCode::kNotFound) << journal.status();
  EXPECT_NE(Message(journal.status()).find(path_), std::string::npos);
}

TEST_F(JournalTest, DamageIsDataLossAndNamesTheFile) {
  {
    auto journal = Open(path_);
    for (int64_t i = 1; i <= 500; ++i) ASSERT_TRUE(journal->Append({{{i}, {i}, "step", std::string(200, 'x')}}).ok());
  }
  std::string bytes = *ReadFile(path_);
  std::fill(bytes.begin() + 8192, bytes.end(), '\xff');
  ASSERT_TRUE(WriteFileAtomically(path_, bytes).ok());
  const auto events = Open(path_, JournalMode::kRead)->Read(0);
  EXPECT_EQ(events.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(Message(events.status()).find(path_), std::string::npos);
}

// Mounts a tmpfs of `size` for as long as it lives.
struct SmallDisk {
  SmallDisk(const std::string& folder, const char* size) : at(folder) {
    mounted = mount("tmpfs", folder.c_str(), "tmpfs", 0, size) == 0;
  }
  ~SmallDisk() {
    if (mounted) umount2(at.c_str(), MNT_DETACH);
  }
  std::string at;
  bool mounted;
};

TEST_F(JournalTest, AFullDiskIsReportedAndPasses) {
  const SmallDisk disk(folder_.path(), "size=512k");
  if (!disk.mounted) GTEST_SKIP() << "cannot mount a tmpfs here (needs root)";
  auto journal = Open(path_);
  ASSERT_NE(journal, nullptr);
  int64_t stored = 0;
  absl::Status status;
  while ((status = journal->Append({{{1}, {1}, "step", std::string(3000, 'x')}})).ok()) ++stored;
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_GT(stored, 10);
  EXPECT_EQ(journal->Read(0)->size(), static_cast<size_t>(stored));
  ASSERT_EQ(mount("tmpfs", folder_.path().c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0);
  EXPECT_TRUE(journal->Append({Numbered(1)}).ok());
  EXPECT_EQ(journal->Read(0)->size(), static_cast<size_t>(stored) + 1);
}

// More appends than one checkpoint takes: the WAL is moved into the database and begun anew behind the appends.
// Somebody looks into it with a shell, and leaves a transaction open: whoever appends has other things to do.
TEST_F(JournalTest, AnAppendDoesNotWaitForWhoeverHasItLocked) {
  auto journal = Open(path_);
  sqlite3* other = nullptr;
  ASSERT_EQ(sqlite3_open(path_.c_str(), &other), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr), SQLITE_OK);
  const SystemClock clock;
  const Nanos begun = clock.Now();
  EXPECT_TRUE(absl::IsUnavailable(journal->Append({Numbered(1)})));
  EXPECT_LT(ToSeconds(clock.Now() - begun).value, 1) << "a tenth of it, on a machine with nothing else to do";
  sqlite3_close(other);
  EXPECT_TRUE(journal->Append({Numbered(1)}).ok());
}

// SQLite would write on into files that nobody finds.
TEST_F(JournalTest, WhatIsRemovedOrEmptiedUnderItIsSaid) {
  auto journal = Open(path_);
  ASSERT_TRUE(journal->Append({Numbered(1)}).ok());
  std::filesystem::rename(path_, folder_ / "elsewhere");
  const absl::Status gone = journal->Append({Numbered(2)});
  EXPECT_TRUE(absl::IsDataLoss(gone)) << gone;
  EXPECT_NE(Message(gone).find(path_ + " was removed under the run"), std::string::npos) << gone;
  std::filesystem::copy(folder_ / "elsewhere", path_);
  EXPECT_NE(Message(journal->Append({Numbered(2)})).find("was replaced by another file"), std::string::npos);
  std::filesystem::rename(folder_ / "elsewhere", path_);
  EXPECT_EQ(journal->Append({Numbered(2)}), absl::OkStatus()) << "it is back";
  std::filesystem::resize_file(path_, 0);
  EXPECT_NE(Message(journal->Append({Numbered(3)})).find("was emptied under the run"), std::string::npos);
}

TEST_F(JournalTest, TheWalStaysSmall) {
  auto journal = Open(path_);
  const auto wal_bytes = [&] { return std::filesystem::file_size(path_ + "-wal"); };
  const auto database_bytes = [&] { return std::filesystem::file_size(path_); };
  const auto before = database_bytes();
  int64_t appended = 0;
  while (database_bytes() == before && appended < 1'000'000) {
    ASSERT_TRUE(journal->Append({Numbered(++appended)}).ok());
  }
  EXPECT_GT(database_bytes(), before) << "no checkpoint after " << appended << " appends";
  EXPECT_GT(wal_bytes(), 0u);
  EXPECT_EQ(journal->Read(0)->size(), static_cast<size_t>(appended));
}

}  // namespace
}  // namespace lockstep::store
