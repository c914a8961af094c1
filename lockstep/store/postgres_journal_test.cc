#include "lockstep/store/postgres_journal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "lockstep/base/file.h"
#include "lockstep/store/test_postgres.h"

namespace lockstep::store {
namespace {

using Role = PostgresJournal::Role;

Event Numbered(int64_t number) { return {{number * 10}, {number * 100}, "step", std::to_string(number)}; }

class PostgresJournalTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = TestPostgres::Make(); }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (!server_) GTEST_SKIP() << "no PostgreSQL on this machine (./dev setup installs it)";
    run_ = testing::UnitTest::GetInstance()->current_test_info()->name();
  }

  // At the pace of users, so that a busy machine looks silent to nobody; kQuick where a test waits for silence.
  static constexpr double kQuick = 0.2;
  std::unique_ptr<PostgresJournal> Open(const std::string& leader = "a:1", double pace = 1) {
    auto journal = PostgresJournal::Open({server_->url(), run_, leader, "token of " + leader, pace}, clock_);
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? std::move(*journal) : nullptr;
  }
  // One that leads.
  std::unique_ptr<PostgresJournal> Lead(const std::string& leader = "a:1", double pace = 1) {
    auto journal = Open(leader, pace);
    EXPECT_TRUE(Until([&] { return journal->role() == Role::kLeads; }));
    return journal;
  }
  // False after 20 s in vain.
  static bool Until(const std::function<bool()>& happened) {
    for (int i = 0; i < 4000; ++i) {
      if (happened()) return true;
      usleep(5'000);
    }
    return false;
  }
  static PostgresSession::Answer Ask(const std::string& sql, const std::vector<std::string>& parameters = {}) {
    constexpr Seconds kPatience{60};  // beside other tests 60,000 rows take their time
    auto session = PostgresSession::Open(server_->url(), "the test", kPatience);
    EXPECT_TRUE(session.ok()) << session.status();
    auto answer = (*session)->Query(sql, parameters, kPatience);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.value_or(PostgresSession::Answer{});
  }

  static inline std::unique_ptr<TestPostgres> server_;
  SystemClock clock_;
  std::string run_;
};

TEST_F(PostgresJournalTest, GivesBackWhatWasAppended) {
  auto journal = Lead();
  ASSERT_TRUE(journal->Append({Numbered(1), Numbered(2)}).ok());
  const std::string odd = "{\"quoted\": \"\\n\\u0000\", x}, NULL\n\ttab, \xc3\xa4 back\\slash";
  ASSERT_TRUE(journal->Append({{{7}, {8}, "odd \"type\"", odd}, {{9}, {9}, "empty", ""}}).ok());
  const auto events = *journal->Read(0);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[1].sequence, 2);
  EXPECT_EQ(events[1].at.value, 20);
  EXPECT_EQ(events[1].wall.value, 200);
  EXPECT_EQ(events[2].type, "odd \"type\"");
  EXPECT_EQ(events[2].payload, odd);
  EXPECT_EQ(events[3].payload, "");
  EXPECT_EQ(journal->Read(3)->size(), 1u);
  EXPECT_TRUE(journal->Read(4)->empty());
}

TEST_F(PostgresJournalTest, WhatPostgresCannotHoldIsRefusedByName) {
  auto journal = Lead();
  const absl::Status status = journal->Append({{{1}, {1}, "step", std::string("a\0b", 3)}});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(Message(status).find("zero byte, found one in an event of type step"), std::string::npos) << status;
  EXPECT_TRUE(journal->Append({Numbered(1)}).ok());
}

// Read page by page, between which the leader goes on to say that it leads.
TEST_F(PostgresJournalTest, ALongJournalIsReadWhole) {
  auto journal = Lead();
  Ask("INSERT INTO lockstep_journal SELECT $1, i, i * 10, i * 100, 'step', i FROM generate_series(1, 60000) i", {run_});
  const auto events = journal->Read(0);
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 60'000u);
  EXPECT_EQ(events->back().payload, "60000");
  EXPECT_EQ(journal->Read(59'999)->size(), 1u);
  EXPECT_EQ(journal->Read(60'000)->size(), 0u);
}

TEST_F(PostgresJournalTest, SequencesGoOnAfterReopening) {
  ASSERT_TRUE(Lead()->Append({Numbered(1)}).ok());
  auto journal = Lead();
  EXPECT_EQ(journal->term().number, 2);
  ASSERT_TRUE(journal->Append({Numbered(2)}).ok());
  ASSERT_TRUE(journal->Sync().ok());
  EXPECT_EQ(journal->Read(0)->back().sequence, 2);
}

TEST_F(PostgresJournalTest, RunsOfOneDatabaseAreApart) {
  auto first = Lead();
  run_ += " other";
  auto second = Lead();
  ASSERT_TRUE(first->Append({Numbered(1)}).ok());
  ASSERT_TRUE(second->Append({Numbered(2), Numbered(3)}).ok());
  EXPECT_EQ(first->Read(0)->size(), 1u);
  EXPECT_EQ(second->Read(0)->size(), 2u);
}

TEST_F(PostgresJournalTest, ReadersFollowAWriter) {
  auto writer = Lead();
  const auto reader = OpenPostgresReader(server_->url(), run_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->Read(0)->empty());
  ASSERT_TRUE(writer->Append({Numbered(1)}).ok());
  EXPECT_EQ((*reader)->Read(0)->size(), 1u);
  EXPECT_EQ((*reader)->Append({Numbered(2)}).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(OpenPostgresReader(server_->url(), "nobody").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(PostgresJournalTest, ManyThreadsAppendWithoutHoles) {
  auto journal = Lead();
  {
    std::vector<std::jthread> threads;
    threads.reserve(4);
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 50; ++i) EXPECT_TRUE(journal->Append({Numbered(i)}).ok());
      });
    }
  }
  EXPECT_EQ(journal->Read(0)->size(), 200u);  // Read itself refuses holes
}

TEST_F(PostgresJournalTest, AServerThatIsNotThereIsUnavailable) {
  const auto journal = PostgresJournal::Open({"postgresql:///x?host=/nowhere", run_, "a:1", "t"}, clock_);
  EXPECT_EQ(journal.status().code(), absl::StatusCode::kUnavailable) << journal.status();
  EXPECT_NE(Message(journal.status()).find("/nowhere"), std::string::npos) << journal.status();
}

TEST_F(PostgresJournalTest, ANewerFormatIsRefused) {
  Lead();
  Ask("UPDATE lockstep_schema SET version = 2");
  const auto journal = PostgresJournal::Open({server_->url(), run_, "a:1", "t"}, clock_);
  Ask("UPDATE lockstep_schema SET version = 1");
  EXPECT_EQ(Message(journal.status()),
            "lockstep_schema in PostgreSQL: journal format 2, but this Lockstep reads format 1");
}

TEST_F(PostgresJournalTest, OneLeadsAndTheOtherTakesOver) {
  auto first = Lead("a:1");
  ASSERT_TRUE(first->Append({Numbered(1)}).ok());
  auto second = Open("b:2");
  ASSERT_TRUE(Until([&] { return !second->leader().empty(); }));
  EXPECT_TRUE(second->leader().starts_with("a:1, since 2")) << second->leader();
  EXPECT_EQ(*LeaderOf(server_->url(), run_), second->leader());
  EXPECT_EQ(*LeaderOf(server_->url(), "nobody"), "");
  EXPECT_EQ(second->Append({Numbered(2)}).code(), absl::StatusCode::kFailedPrecondition);
  first.reset();
  ASSERT_TRUE(Until([&] { return second->role() == Role::kLeads; }));
  EXPECT_EQ(second->term().number, 2);
  EXPECT_EQ(second->term().token, "token of a:1") << "the run is the same";
  EXPECT_LT(std::abs(second->term().ahead.value), 1'000'000'000) << "on the same machine";
  ASSERT_TRUE(second->Append({Numbered(2)}).ok());
  EXPECT_EQ(second->Read(0)->size(), 2u);
}

// The new leader's clock goes on where the old one's was, on whichever machine that ran.
TEST_F(PostgresJournalTest, TheClockGoesOn) {
  const int64_t later = clock_.Now().value + 5'000'000'000'000;
  ASSERT_TRUE(Lead()->Append({Numbered(1)}).ok());
  Ask("UPDATE lockstep_run SET at = $2::bigint WHERE run = $1", {run_, std::to_string(later)});
  const Nanos ahead = Lead()->term().ahead;
  EXPECT_GE(clock_.Now().value + ahead.value, later);
  // Its last event may be younger than its last beat.
  Ask("UPDATE lockstep_journal SET at = $2::bigint WHERE run = $1", {run_, std::to_string(2 * later)});
  const Nanos further_ahead = Lead()->term().ahead;
  EXPECT_GE(clock_.Now().value + further_ahead.value, 2 * later);
}

TEST_F(PostgresJournalTest, WhoIsNotTheNewestIsRefused) {
  auto first = Lead("a:1");
  Ask("UPDATE lockstep_run SET term = term + 1, leader = 'b:2' WHERE run = $1", {run_});
  const absl::Status status = first->Append({Numbered(1)});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(Message(status).find("another coordinator leads run " + run_ + ": b:2, since "), std::string::npos)
      << status;
  EXPECT_EQ(first->role(), Role::kDeposed);
  EXPECT_EQ(first->Sync().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Ask("SELECT FROM lockstep_journal WHERE run = $1", {run_}).rows.size(), 0u);
}

// It hears so by its next beat too.
TEST_F(PostgresJournalTest, WhoWritesNothingIsDeposedTooWithoutWaitingForAnAppend) {
  auto first = Lead("a:1");
  Ask("UPDATE lockstep_run SET term = term + 1, leader = 'b:2' WHERE run = $1", {run_});
  EXPECT_TRUE(Until([&] { return first->role() == Role::kDeposed; }));
}

// A process that leads, is frozen for longer than it may be silent, and then goes on appending.
TEST_F(PostgresJournalTest, AFrozenLeaderIsDeposed) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t frozen = fork();
  if (frozen == 0) {
    auto journal = Lead("a:1", kQuick);
    char told = journal->Append({Numbered(1)}).ok() ? 'a' : 'x';
    absl::Status status;
    do {
      if (write(ends[1], &told, 1) != 1) _exit(2);
      usleep(20'000);
      status = journal->Append({Numbered(2)});
    } while (status.ok() || absl::IsUnavailable(status));
    told = absl::IsFailedPrecondition(status) ? 'd' : 'y';
    (void)!write(ends[1], &told, 1);
    _exit(0);
  }
  close(ends[1]);
  const Fd told(ends[0]);
  char said = 0;
  ASSERT_EQ(read(told.get(), &said, 1), 1);
  ASSERT_EQ(said, 'a');
  auto second = Open("b:2", kQuick);
  ASSERT_TRUE(Until([&] { return !second->leader().empty(); }));
  kill(frozen, SIGSTOP);
  ASSERT_TRUE(Until([&] { return second->role() == Role::kLeads; }));
  const size_t before = second->Read(0)->size();
  ASSERT_TRUE(second->Append({Numbered(3)}).ok());
  kill(frozen, SIGCONT);
  while (read(told.get(), &said, 1) == 1) {
  }
  waitpid(frozen, nullptr, 0);
  EXPECT_EQ(said, 'd');
  EXPECT_EQ(second->Read(0)->size(), before + 1) << "what it appended since is nowhere";
}

// Somebody deletes what seems to be old: the job goes on, and nobody else makes another run of it.
TEST_F(PostgresJournalTest, ARowThatIsDeletedIsPutBackByWhoeverLeads) {
  auto first = Lead("a:1");
  auto second = Open("b:2");
  ASSERT_TRUE(Until([&] { return !second->leader().empty(); }));
  ASSERT_TRUE(first->Append({Numbered(1)}).ok());
  Ask("DELETE FROM lockstep_run WHERE run = $1", {run_});
  Ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
      {"lockstep coordinator " + run_});
  const auto row = [&] { return Ask("SELECT term, token, leader FROM lockstep_run WHERE run = $1", {run_}).rows; };
  ASSERT_TRUE(Until([&] { return !row().empty(); }));
  EXPECT_EQ(row()[0], (std::vector<std::string>{"1", "token of a:1", "a:1"}));
  ASSERT_TRUE(Until([&] { return first->Append({Numbered(2)}).ok(); }));
  Ask("DELETE FROM lockstep_run WHERE run = $1", {run_});  // and its sessions live
  ASSERT_TRUE(Until([&] { return first->Append({Numbered(3)}).ok() && !row().empty(); }));
  EXPECT_EQ(first->role(), Role::kLeads);
  EXPECT_EQ(second->role(), Role::kStandsIn);
}

// Its agents would be strangers to one that begins, and its events those of another run.
TEST_F(PostgresJournalTest, AJournalThatHasLostItsRowIsNotBegunAnew) {
  ASSERT_TRUE(Lead("a:1")->Append({Numbered(1)}).ok());
  Ask("DELETE FROM lockstep_run WHERE run = $1", {run_});
  auto second = Open("b:2");
  EXPECT_TRUE(Ask("SELECT FROM lockstep_run WHERE run = $1", {run_}).rows.empty());
  const auto events = second->Read(0);
  ASSERT_TRUE(events.ok()) << events.status();
  EXPECT_EQ(events->size(), 1u);
}

// Somebody has a lock in the database, by a shell that is left open: only the first append waits for it.
TEST_F(PostgresJournalTest, AServerThatDoesNotAnswerIsWaitedForOnce) {
  auto journal = Lead("a:1", kQuick);
  auto other = PostgresSession::Open(server_->url(), "the test", Seconds{5});
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->Query("BEGIN; SELECT FROM lockstep_run FOR UPDATE", {}, Seconds{5}).ok());
  ASSERT_TRUE(Until([&] { return absl::IsUnavailable(journal->Append({Numbered(1)})); }));
  const Nanos begun = clock_.Now();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(journal->Append({Numbered(1)})));
    usleep(1'000);  // the keeper has the session by now, if it wants it
  }
  EXPECT_LT(ToSeconds(clock_.Now() - begun).value, 1) << "one more wait would take 1 s";
  other->reset();
  EXPECT_TRUE(Until([&] { return journal->Append({Numbered(1)}).ok(); }));
  EXPECT_EQ(journal->role(), Role::kLeads);
}

TEST_F(PostgresJournalTest, ALostSessionChangesNoLeader) {
  auto first = Lead("a:1");
  auto second = Open("b:2");
  ASSERT_TRUE(Until([&] { return !second->leader().empty(); }));
  Ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
      {"lockstep coordinator " + run_});
  ASSERT_TRUE(Until([&] { return first->Append({Numbered(1)}).ok(); }));
  EXPECT_EQ(first->term().number, 1);
  EXPECT_EQ(second->role(), Role::kStandsIn);
  EXPECT_EQ(first->Read(0)->size(), 1u);
}

// As the coordinator does: what failed is tried again with the next.
struct Writer {
  explicit Writer(Journal& to) : journal(to) {}
  bool Write(int64_t number) {
    waiting.push_back(Numbered(number));
    said = journal.Append(waiting);
    if (said.ok()) waiting.clear();
    return said.ok();
  }
  Journal& journal;
  absl::Status said;
  std::vector<Event> waiting;
};

// The server's process behind our session says nothing any more, and still has our lock.
TEST_F(PostgresJournalTest, ASessionThatHangsIsGivenUp) {
  auto journal = Lead("a:1", kQuick);
  ASSERT_TRUE(journal->Append({Numbered(1)}).ok());
  const auto behind = static_cast<pid_t>(
      std::stoi(Ask("SELECT pid FROM pg_stat_activity WHERE application_name = $1", {"lockstep coordinator " + run_})
                    .rows[0][0]));
  kill(behind, SIGSTOP);
  EXPECT_TRUE(Until([&] { return journal->Append({Numbered(2)}).ok(); }));
  kill(behind, SIGCONT);
  EXPECT_TRUE(Until([&] { return !journal->MayBeReplaced(); }));
  EXPECT_EQ(journal->term().number, 1);
  EXPECT_EQ(journal->Read(0)->size(), 2u);
}

// As when a replica is promoted that had not yet heard of all: what is gone is gone, and there is no hole.
TEST_F(PostgresJournalTest, AServerThatHasForgottenMuchIsGoneOnWith) {
  auto journal = Lead("a:1");
  for (int i = 1; i <= 5; ++i) ASSERT_TRUE(journal->Append({Numbered(i)}).ok());
  ASSERT_TRUE(journal->Sync().ok());
  Ask("DELETE FROM lockstep_journal WHERE run = $1 AND sequence > 2", {run_});
  Ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1",
      {"lockstep coordinator " + run_});
  ASSERT_TRUE(Until([&] { return journal->Append({Numbered(6)}).ok(); }));
  const auto events = journal->Read(0);
  ASSERT_TRUE(events.ok()) << events.status();
  ASSERT_EQ(events->size(), 3u);
  EXPECT_EQ(events->back().payload, "6");
}

// The session ends between the server's commit and its answer, twice; the keeper finds what arrived before it is tried
// again.
TEST_F(PostgresJournalTest, WhatArrivedIsNotAppendedTwice) {
  auto journal = Lead("a:1");
  ASSERT_TRUE(journal->Append({Numbered(1)}).ok());
  const auto sessions = [&](const std::string& what) {
    return Ask("SELECT " + what + " FROM pg_stat_activity WHERE application_name = $1",
               {"lockstep coordinator " + run_})
        .rows;
  };
  const auto beat = [&] { return Ask("SELECT beat FROM lockstep_run WHERE run = $1", {run_}).rows[0][0]; };
  for (const std::string number : {"2", "3"}) {
    Ask("INSERT INTO lockstep_journal SELECT $1, n, n * 10, n * 100, 'step', n FROM (SELECT $2::bigint AS n) one",
        {run_, number});
    const std::string ended = sessions("pid")[0][0];
    sessions("pg_terminate_backend(pid)");
    ASSERT_TRUE(Until([&] {
      const auto rows = sessions("pid");
      return rows.size() == 1 && rows[0][0] != ended;
    }));
    const std::string before = beat();
    ASSERT_TRUE(Until([&] { return beat() != before; }));
  }
  ASSERT_TRUE(journal->Append({Numbered(2), Numbered(3), Numbered(4)}).ok());
  const auto events = *journal->Read(0);
  ASSERT_EQ(events.size(), 4u);
  for (const Event& event : events) EXPECT_EQ(event.payload, std::to_string(event.sequence));
}

// A server that is killed loses what it had not yet synced, and may have taken what it did not acknowledge.
TEST_F(PostgresJournalTest, NothingIsLostOrTwiceWhenTheServerIsKilled) {
  auto journal = Lead("a:1");
  Writer writer(*journal);
  int64_t number = 0;
  for (int kills = 0; kills < 2; ++kills) {
    std::atomic<bool> stop = false;
    std::jthread appends([&] {
      while (!stop) writer.Write(++number);
    });
    const auto rows = [&] { return Ask("SELECT count(*) FROM lockstep_journal WHERE run = $1", {run_}).rows[0][0]; };
    const int64_t before = std::stoll(rows());
    ASSERT_TRUE(Until([&] { return std::stoll(rows()) > before + 200; }));
    server_->Kill();
    stop = true;
    appends.join();
    server_->Start();
    ASSERT_TRUE(Until([&] { return writer.Write(++number); }));
    ASSERT_TRUE(journal->Sync().ok());
  }
  const auto events = *journal->Read(0);
  ASSERT_EQ(events.size(), static_cast<size_t>(number));
  for (const Event& event : events) EXPECT_EQ(event.payload, std::to_string(event.sequence));
  EXPECT_EQ(journal->term().number, 1);
}

TEST_F(PostgresJournalTest, AServerThatIsAwayCostsNoTimeAndChangesNoLeader) {
  auto first = Lead("a:1");
  auto second = Open("b:2");
  ASSERT_TRUE(Until([&] { return !second->leader().empty(); }));
  Writer writer(*first);
  int64_t number = 1;
  ASSERT_TRUE(writer.Write(number));
  server_->Kill();
  // The server's process behind our session dies a little later, and may take some until then.
  ASSERT_TRUE(Until([&] { return !writer.Write(++number); }));
  EXPECT_TRUE(absl::IsUnavailable(writer.said)) << writer.said;
  ASSERT_TRUE(Until([&] { return first->MayBeReplaced(); }));
  EXPECT_EQ(first->role(), Role::kLeads);
  server_->Start();
  ASSERT_TRUE(Until([&] { return writer.Write(++number); }));
  ASSERT_TRUE(Until([&] { return !first->MayBeReplaced(); }));
  EXPECT_EQ(first->term().number, 1);
  EXPECT_EQ(second->role(), Role::kStandsIn);
  EXPECT_EQ(first->Read(0)->size(), static_cast<size_t>(number));
}

}  // namespace
}  // namespace lockstep::store
