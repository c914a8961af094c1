#include "lockstep/trace/flight_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Rank 1 of two: an all_reduce that has ended, one that has not, and a receive.
constexpr char kDump[] = R"({"version": "2.9",
  "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}, "7": {"name": "7", "desc": "PP", "ranks": [3, 1]}},
  "pg_status": {"0": {"last_enqueued_collective": 12, "last_completed_collective": 11},
                "1": {"last_enqueued_collective": 5, "last_completed_collective": 4}},
  "entries": [
    {"record_id": 40, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 11, "p2p_seq_id": 0,
     "profiling_name": "nccl:all_reduce", "time_created_ns": 1000, "input_sizes": [[4, 2]], "input_dtypes": ["Float"],
     "state": "completed", "is_p2p": false},
    {"record_id": 41, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 12, "p2p_seq_id": 0,
     "profiling_name": "nccl:all_reduce", "time_created_ns": 2000, "input_sizes": [[4, 2]], "input_dtypes": ["Float"],
     "state": "started", "is_p2p": false},
    {"record_id": 42, "pg_id": 1, "process_group": ["7", "PP"], "collective_seq_id": 2, "p2p_seq_id": 5,
     "profiling_name": "nccl:recv 1<-0", "time_created_ns": null, "state": "scheduled", "is_p2p": true},
    {"record_id": 43, "pg_id": 1, "process_group": ["7", "PP"], "profiling_name": "nccl:coalesced", "is_p2p": true},
    {"record_id": 44, "profiling_name": "nccl:barrier"}]})";

class FlightRecorder : public testing::Test {
 protected:
  FlightRecorder() { std::filesystem::create_directories(folder_); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string PathOf(const std::string& name) const { return (folder_ / name).string(); }
  absl::StatusOr<CommLog> Read() const { return ReadFlightRecorder({folder_.string()}); }
  std::string Error() const { return Message(Read().status()); }

  const std::filesystem::path folder_ = TempPath("dumps");
};

TEST_F(FlightRecorder, TakesOpsGroupsAndCounters) {
  Write("nccl_trace_rank_1", kDump);
  Write("fault_injection.log", "Fault ranks: [1]\n");
  const CommLog log = Read().value();
  EXPECT_THAT(log.reported, ElementsAre(1));
  EXPECT_THAT(log.world, ElementsAre(0, 1));
  ASSERT_EQ(log.communicators.size(), 2U);
  EXPECT_EQ(log.communicators[1].description, "PP");
  EXPECT_THAT(log.communicators[1].ranks, ElementsAre(3, 1));
  ASSERT_EQ(log.ops.size(), 4U);
  EXPECT_EQ(log.functions[log.ops[0].function], "all_reduce");
  EXPECT_EQ(log.ops[0].state, OpState::kCompleted);
  EXPECT_EQ(log.ops[1].state, OpState::kStarted);
  EXPECT_EQ(log.ops[1].sequence, 12);
  EXPECT_EQ(log.shapes[log.ops[1].shape], "[4,2] Float");
  EXPECT_EQ(log.ops[0].shape, log.ops[1].shape);
  EXPECT_EQ(log.ops[2].shape, 0U);
  EXPECT_EQ(log.ops[2].direction, Direction::kReceive);
  EXPECT_EQ(log.ops[2].peer, 3) << "the rank of the job at place 0 of the group";
  EXPECT_EQ(log.ops[2].created_ns, -1);
  EXPECT_EQ(log.ops[3].direction, Direction::kReceive) << "it holds the rank up as one does";
  EXPECT_EQ(log.ops[3].peer, -1);
  EXPECT_THAT(log.whole, IsEmpty()) << "40 entries are not there";
  ASSERT_EQ(log.counts.size(), 1U) << "those of a group with transfers count both";
  EXPECT_EQ(log.counts[0].enqueued, 12);
  EXPECT_EQ(log.counts[0].completed, 11);
  std::map<std::string, uint64_t> counters;
  for (const Counter& one : log.counters) counters[one.name] = one.count;
  EXPECT_EQ(counters, (std::map<std::string, uint64_t>{
                          {"other_files", 1}, {"transfers_without_peer", 1}, {"unreadable_entries", 1}}));
}

// As batch_isend_irecv and coalesced collectives are recorded: each without a state, then all of them with one.
TEST_F(FlightRecorder, WhatIsLaunchedTogetherHasTheStateOfItsEnd) {
  std::string entries;
  int record = 0;
  const auto add = [&](const char* name, int collective, int transfer, bool p2p, const char* state) {
    entries += fmt::format(R"({}{{"record_id": {}, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": {},
        "p2p_seq_id": {}, "profiling_name": "nccl:{}", "is_p2p": {}, "state": "{}"}})",
                           record == 0 ? "" : ",", record, collective, transfer, name, p2p, state);
    ++record;
  };
  add("send 0->1", 1, 4, true, "completed");
  add("send 0->1", 2, 4, true, "scheduled");
  add("recv 0<-1", 2, 4, true, "scheduled");
  add("coalesced", 2, 4, true, "completed");
  add("all_reduce", 3, 4, false, "scheduled");
  add("all_reduce", 3, 4, false, "scheduled");
  add("coalesced", 3, 4, false, "started");
  Write("rank_0.json", R"({"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [)" + entries + "]}");
  const CommLog log = Read().value();
  ASSERT_EQ(log.ops.size(), 4U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(log.ops[i].state, OpState::kCompleted);
  EXPECT_EQ(log.ops[2].peer, 1);
  EXPECT_EQ(log.ops[1].batch, log.ops[2].batch);
  EXPECT_NE(log.ops[0].batch, log.ops[1].batch);
  EXPECT_EQ(log.ops[3].batch, CommOp::kAlone);
  EXPECT_EQ(log.ops[3].direction, Direction::kCollective);
  EXPECT_EQ(log.ops[3].sequence, 3);
  EXPECT_EQ(log.ops[3].state, OpState::kStarted);
  EXPECT_THAT(log.counters, IsEmpty());
  EXPECT_THAT(log.whole, ElementsAre(0));
}

// An entry of the default group, with commas between. `p2p`: "" leaves the flag out.
struct Launch {
  int record, collective, transfer;
  const char *name, *state, *p2p = "";
};
std::string EntriesOf(const std::vector<Launch>& all, int64_t begin_ns = 0) {
  std::string entries;
  for (const Launch& one : all)
    entries += fmt::format(R"({}{{"record_id": {}, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": {},
        "p2p_seq_id": {}, "profiling_name": "nccl:{}", "state": "{}", "time_created_ns": {}{}{}}})",
                           entries.empty() ? "" : ",", one.record, one.collective, one.transfer, one.name, one.state,
                           begin_ns + one.record, *one.p2p == 0 ? "" : ", \"is_p2p\": ", one.p2p);
  return entries;
}
// A dump of such entries. `enqueued` and `ended`: as the rank counts them.
std::string CountedDump(const std::vector<Launch>& all, int enqueued, int ended, const std::string& ranks = "[0, 1]",
                        int64_t begin_ns = 0) {
  return fmt::format(R"({{"pg_config": {{"0": {{"desc": "all", "ranks": "{}"}}}}, "pg_status": {{"0":
      {{"last_enqueued_collective": {}, "last_completed_collective": {}}}}}, "entries": [{}]}})",
                     ranks, enqueued, ended, EntriesOf(all, begin_ns));
}
std::vector<OpState> StatesOf(const CommLog& log) {
  std::vector<OpState> states;
  for (const CommOp& op : log.ops) states.push_back(op.state);
  return states;
}

// Before version 2.1 there is no flag, neither of transfers nor of the ends of their batches.
TEST_F(FlightRecorder, ATransferIsOneByItsName) {
  for (const char* flag : {"", "false"}) {
    Write("rank_0", CountedDump({{0, 0, 1, "send 0->1", "scheduled", flag},
                                 {1, 0, 1, "recv 0<-1", "scheduled", flag},
                                 {2, 0, 1, "coalesced", "completed", flag},
                                 {3, 0, 2, "recv 0<-1", "started", flag},
                                 {4, 1, 2, "all_reduce", "scheduled", flag}},
                                2, 1));
    const CommLog log = Read().value();
    EXPECT_THAT(StatesOf(log),
                ElementsAre(OpState::kCompleted, OpState::kCompleted, OpState::kStarted, OpState::kScheduled));
    EXPECT_EQ(log.ops[0].direction, Direction::kSend);
    EXPECT_EQ(log.ops[1].batch, log.ops[0].batch);
    EXPECT_EQ(log.ops[2].direction, Direction::kReceive);
    EXPECT_EQ(log.ops[2].peer, 1);
    EXPECT_EQ(log.ops[3].direction, Direction::kCollective);
  }
}

// A dump of what is under way alone leaves out the ends of batches that have ended.
TEST_F(FlightRecorder, ABatchWhoseEndIsLeftOutHasEnded) {
  constexpr OpState kDone = OpState::kCompleted, kOpen = OpState::kScheduled;
  const std::vector<Launch> collectives = {{0, 1, 0, "_all_gather_base", "scheduled"},
                                           {1, 1, 0, "_all_gather_base", "scheduled"},
                                           {3, 2, 0, "all_reduce", "scheduled"}};
  Write("rank_0", CountedDump(collectives, 2, 1));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kDone, kOpen));
  EXPECT_THAT(Read()->whole, IsEmpty()) << "some are left out";
  Write("rank_0", CountedDump({collectives[0], collectives[1]}, 1, 1));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kDone));
  EXPECT_THAT(Read()->whole, IsEmpty()) << "by its counters one has ended";
  const Launch receive = {4, 0, 1, "recv 0<-1", "scheduled", "true"},
               send = {6, 0, 2, "send 0->1", "scheduled", "true"};
  Write("rank_0", CountedDump({receive, send}, 2, 1));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kOpen));
  EXPECT_FALSE(Read()->unseen);
  Write("rank_0", CountedDump({receive, send}, 2, 0));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kOpen, kOpen)) << "none of a batch";
  Write("rank_0", CountedDump({receive, {7, 1, 1, "all_reduce", "scheduled"}}, 1, 0));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kOpen));
  EXPECT_TRUE(Read()->unseen) << "where a group has both, its counters don't tell";
  Write("rank_0",
        CountedDump({{4, 1, 2, "send 0->1", "scheduled", "true"}, {6, 1, 3, "recv 0<-1", "scheduled", "true"}}, 3, 3));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kDone))
      << "they tell of transfers, for there was one collective";
  Write("rank_0", CountedDump({{3, 1, 0, "all_reduce", "completed"}, receive, send}, 2, 1));
  EXPECT_THAT(StatesOf(Read().value()), ElementsAre(kDone, kOpen, kOpen)) << "it tells what has ended";
}

TEST_F(FlightRecorder, WhereSomeDevicesHaveBegunTheOthersAreAwaited) {
  const auto write = [&](const char* name, const char* state) {
    Write(name, CountedDump({{0, 1, 0, "all_reduce", "completed"}, {1, 2, 0, "all_reduce", state}}, 2, 1));
  };
  write("rank_0", "scheduled");
  write("rank_1", "scheduled");
  for (const CommOp& op : Read()->ops) EXPECT_FALSE(op.awaits_device) << "nobody looks";
  write("rank_1", "started");
  std::vector<int> awaited;
  const CommLog log = Read().value();
  for (const CommOp& op : log.ops)
    if (op.awaits_device) awaited.push_back(op.rank);
  EXPECT_THAT(awaited, ElementsAre(0));
}

// A rank's all_reduces: the id of their group, its name, how many, and when the first was launched. The last of the
// last has not ended.
struct Launches {
  int id;
  const char* name;
  int count;
  int begin_ns;
};
std::string DumpOf(const std::vector<Launches>& all) {
  std::string entries;
  int record = 0;
  for (const Launches& launches : all)
    for (int i = 1; i <= launches.count; ++i)
      entries += fmt::format(R"({}{{"record_id": {}, "pg_id": {}, "process_group": ["{}", ""], "collective_seq_id": {},
          "profiling_name": "nccl:all_reduce", "time_created_ns": {}, "state": "{}"}})",
                             entries.empty() ? "" : ",", record++, launches.id, launches.name, i, launches.begin_ns + i,
                             &launches == &all.back() && i == launches.count ? "started" : "completed");
  return R"({"pg_config": {"0": {"ranks": "[0, 1, 2]"}, "1": {"ranks": "[0, 1, 2]"}},
      "pg_status": {"0": {"last_enqueued_collective": 50, "last_completed_collective": 50}}, "entries": [)" +
         entries + "]}";
}

TEST_F(FlightRecorder, LeavesOutWhatWasLaunchedInGroupsThatWereDestroyed) {
  Write("rank_0", DumpOf({{0, "0", 5, 100}, {1, "1", 5, 100}, {2, "0", 3, 200}}));
  Write("rank_1", DumpOf({{0, "0", 4, 101}, {3, "0", 3, 200}}));  // it is in other groups besides
  Write("rank_2", DumpOf({{0, "0", 5, 105}}));                    // it has launched none in the new one
  const CommLog log = Read().value();
  ASSERT_EQ(log.ops.size(), 6U);
  for (const CommOp& op : log.ops) {
    EXPECT_NE(op.rank, 2);
    EXPECT_GT(op.created_ns, 200);
    EXPECT_EQ(log.communicators[op.communicator].name, "0");
  }
  EXPECT_THAT(log.counts, IsEmpty());
  ASSERT_EQ(log.counters.size(), 1U);
  EXPECT_EQ(log.counters[0].name, "ops_of_destroyed_groups");
  EXPECT_EQ(log.counters[0].count, 19U);
}

// Of rank 1 the old entries are overwritten, and rank 2 has launched none in the third group.
TEST_F(FlightRecorder, KnowsTheNewestGroupByItsBegin) {
  Write("rank_0", DumpOf({{0, "0", 5, 100}, {1, "0", 5, 200}, {2, "0", 3, 300}}));
  Write("rank_1", DumpOf({{2, "0", 3, 300}}));
  Write("rank_2", DumpOf({{0, "0", 5, 100}, {1, "0", 5, 200}}));
  std::set<int> ranks;
  const CommLog log = Read().value();
  for (const CommOp& op : log.ops) {
    ranks.insert(op.rank);
    EXPECT_GT(op.created_ns, 300);
  }
  EXPECT_THAT(ranks, ElementsAre(0, 1));
}

// The clock of rank 1 is behind by more than lies between both groups, and its old entries may be overwritten; rank 2
// has launched none in the new one.
TEST_F(FlightRecorder, WhoLaunchedInAsManyGroupsAsAnyDidSoInTheNewest) {
  for (const bool overwritten : {false, true}) {
    Write("rank_0", DumpOf({{0, "0", 5, 300}, {1, "0", 3, 400}}));
    Write("rank_1", DumpOf({{0, "0", overwritten ? 0 : 5, 100}, {1, "0", 3, 200}}));
    Write("rank_2", DumpOf({{0, "0", 5, 300}}));
    std::vector<int> ranks;
    const CommLog log = Read().value();
    for (const CommOp& op : log.ops) ranks.push_back(op.rank);
    EXPECT_THAT(ranks, ElementsAre(0, 0, 0, 1, 1, 1)) << overwritten;
  }
}

// Rank 0 tells of as many groups as rank 2, which has launched none in the third.
TEST_F(FlightRecorder, AGroupWhoseEntriesAreOverwrittenCounts) {
  Write("rank_0", DumpOf({{1, "0", 5, 200}, {2, "0", 3, 300}}));
  Write("rank_1", DumpOf({{2, "0", 3, 300}}));
  Write("rank_2", DumpOf({{0, "0", 5, 100}, {1, "0", 5, 200}}));
  std::set<int> ranks;
  const CommLog log = Read().value();
  for (const CommOp& op : log.ops) ranks.insert(op.rank);
  EXPECT_THAT(ranks, ElementsAre(0, 1));
}

TEST_F(FlightRecorder, WhoseTransfersHaveNoPeerHasNotToldThemAll) {
  Write("rank_0.json", R"({"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [{"record_id": 0, "pg_id": 0,
      "process_group": ["0", ""], "profiling_name": "nccl:coalesced", "p2p_seq_id": 1, "is_p2p": true,
      "state": "completed"}]})");
  const CommLog log = Read().value();
  EXPECT_EQ(log.ops.size(), 1U);
  EXPECT_THAT(log.whole, IsEmpty());
}

TEST_F(FlightRecorder, WhoHasEndedNoneYetCountsFromMinusOne) {
  Write("rank_0.json", R"({"pg_config": {"0": {"ranks": "[0, 1]"}, "1": {"ranks": "[0, 1]"}},
      "pg_status": {"0": {"last_enqueued_collective": 1, "last_completed_collective": -1},
                    "1": {"last_completed_collective": null}},
      "entries": [{"record_id": 0, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": 1, "state": "started"}]})");
  const CommLog log = Read().value();
  ASSERT_EQ(log.counts.size(), 2U);
  EXPECT_EQ(log.counts[0].enqueued, 1);
  EXPECT_EQ(log.counts[0].completed, 0);
  EXPECT_EQ(log.counts[1].enqueued, -1);
  EXPECT_EQ(log.counts[1].completed, -1);
  EXPECT_THAT(log.whole, ElementsAre(0));
}

TEST_F(FlightRecorder, PicklesAndJsonMayStandSideBySide) {
  Write("rank_1.json", kDump);
  Write("rank_0", std::string("\x80\x02}(X\x07\0\0\0entries]u.", 19));
  const CommLog log = Read().value();
  EXPECT_THAT(log.reported, ElementsAre(0, 1));
  EXPECT_THAT(log.damaged, IsEmpty());
}

TEST_F(FlightRecorder, ADamagedFileOfADirectoryIsToldOf) {
  Write("rank_1.json", kDump);
  Write("rank_0.json", std::string(kDump).substr(0, 200));
  Write("rank_2", std::string("\x80\x02"
                              "cos\nsystem\n.",
                              14));
  const CommLog log = Read().value();
  EXPECT_THAT(log.reported, ElementsAre(1));
  EXPECT_THAT(log.damaged,
              ElementsAre(HasSubstr("rank_0.json: byte 201: not JSON"), HasSubstr("GLOBAL os system is refused")));
}

// Version 1 had no names and no configuration of groups.
TEST_F(FlightRecorder, OldDumpsHaveNumbersOfGroups) {
  for (const char* rank : {"0", "1"})
    Write(std::string("old_") + rank, R"({"version": "1.0", "entries": [{"record_id": 1, "pg_id": 0, "seq_id": 7,
          "profiling_name": "nccl:all_reduce", "state": "started"}]})");
  const CommLog log = Read().value();
  ASSERT_EQ(log.communicators.size(), 1U);
  EXPECT_THAT(log.communicators[0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(log.ops[0].sequence, 7);
}

// An entry of the default group: when it was launched, and when it was seen to begin or end. -1: not.
struct Seen {
  int64_t created_ns, started_ns, completed_ns;
  bool retired;
};
std::string SeenDump(const std::vector<Seen>& all) {
  Json entries = Json::array();
  const auto or_null = [](int64_t ns) { return ns < 0 ? Json(nullptr) : Json(ns); };
  for (const Seen& one : all)
    entries.push_back({{"record_id", entries.size()},
                       {"pg_id", 0},
                       {"process_group", {"0", ""}},
                       {"collective_seq_id", entries.size() + 1},
                       {"profiling_name", "nccl:all_reduce"},
                       {"time_created_ns", one.created_ns},
                       {"time_discovered_started_ns", or_null(one.started_ns)},
                       {"time_discovered_completed_ns", or_null(one.completed_ns)},
                       {"state", one.completed_ns >= 0 ? "completed"
                                 : one.started_ns >= 0 ? "started"
                                                       : "scheduled"},
                       {"retired", one.retired}});
  return OneLine(Json{{"entries", entries}});
}
constexpr int64_t kSecond = 1'000'000'000, kThen = 1'700'000'000 * kSecond;

// What is not retired yet the dump itself saw begin or end: files may have been copied since.
TEST_F(FlightRecorder, ADumpTellsItsMomentByWhatItSaw) {
  const auto read = [&](const std::vector<Seen>& all) {
    Write("rank_0", SeenDump(all));
    return Read().value();
  };
  const Seen under_way = {kThen - kSecond / 100, -1, -1, false};
  const CommLog log = read({{kThen - kSecond, -1, kThen, false}, under_way});
  EXPECT_TRUE(log.moving);
  EXPECT_EQ(log.ops.back().age_ns, kSecond / 100);
  EXPECT_FALSE(read({{kThen - kSecond, -1, kThen, true}, under_way}).moving) << "it may have ended long ago";
  const Seen begun = {kThen - kSecond / 100, kThen, -1, false};
  EXPECT_TRUE(read({{kThen - kSecond, kThen - kSecond, kThen - kSecond / 2, true}, begun}).moving);
}

// That one was taken before this: what is told in it, too, was launched or retired later.
TEST_F(FlightRecorder, WhatAnEarlierDumpSawIsNotTheMomentOfThis) {
  const Seen seen_before = {kThen - kSecond, -1, kThen, false};
  const std::vector<Seen> launched_later = {seen_before, {kThen + kSecond, -1, -1, false}};
  const std::vector<Seen> retired_later = {
      seen_before, {kThen - kSecond / 2, -1, kThen + kSecond, true}, {kThen - kSecond / 4, -1, -1, false}};
  for (const std::vector<Seen>& all : {launched_later, retired_later}) {
    Write("rank_0", SeenDump(all));
    EXPECT_FALSE(Read()->moving) << "by the file's time it stands still";
  }
}

TEST_F(FlightRecorder, KnowsAJobThatMovedWhenItWasDumped) {
  Write("rank_1.json", kDump);
  EXPECT_FALSE(Read()->moving) << "its ops are of 1970";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string fresh = kDump;
  const std::string old = "\"time_created_ns\": 2000";
  fresh.replace(fresh.find(old), old.size(),
                fmt::format("\"time_created_ns\": {}", std::chrono::nanoseconds(now).count() - 100'000'000));
  Write("rank_1.json", fresh);
  EXPECT_TRUE(Read()->moving);
  Write("rank_0.json", kDump);
  std::filesystem::last_write_time(PathOf("rank_0.json"),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::minutes(1));
  EXPECT_TRUE(Read()->moving) << "rank 1 has launched an op since then";
  std::filesystem::last_write_time(PathOf("rank_0.json"),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_FALSE(Read()->moving) << "that is no time at which it was dumped";
}

// From record 0 on, all_reduce 1 to `launched`; of these all but the last have ended.
std::string AllReduces(int launched, const std::string& ranks = "[0, 1, 2]", int64_t begin_ns = 0) {
  std::vector<Launch> all;
  for (int i = 1; i <= launched; ++i)
    all.push_back({i - 1, i, 0, "all_reduce", i < launched ? "completed" : "scheduled"});
  return CountedDump(all, launched, launched - 1, ranks, begin_ns);
}
constexpr int64_t kDayNs = 86'400'000'000'000;

// The job went on between the dumps, and what tells when they were written is lost.
TEST_F(FlightRecorder, DumpsOfSeveralMomentsTellNothingTogether) {
  Write("rank_0", AllReduces(10));
  Write("rank_1", AllReduces(11));
  Write("rank_2", AllReduces(11));
  EXPECT_FALSE(Read()->moving);
  EXPECT_FALSE(Read()->ops.empty()) << "rank 0 may be the one that does not get out of 10";
  Write("rank_1", AllReduces(12));
  const CommLog log = Read().value();
  EXPECT_TRUE(log.moving);
  EXPECT_THAT(log.ops, IsEmpty());
  EXPECT_THAT(log.reported, ElementsAre(0, 1, 2));
  EXPECT_THAT(log.blind_spot, HasSubstr("not of one moment (rank 1 has ended all_reduce 11 of all (0), and rank 0 had "
                                        "launched up to 10)"));
  EXPECT_THAT(log.blind_spot, testing::EndsWith("behind the others: rank_0"));
}

TEST_F(FlightRecorder, RootedOpsMayEndBeforeOthersLaunchThem) {
  Write("rank_0", CountedDump({{0, 1, 0, "broadcast", "completed"}}, 1, 1));
  Write("rank_1", CountedDump({}, 0, 0));
  EXPECT_EQ(Read()->ops.size(), 1U);
}

// Older or newer by what it tells, and of more ops or fewer.
TEST_F(FlightRecorder, WhatAnEarlierIncidentLeftIsLeftOut) {
  for (const int launched : {5, 50}) {
    Write("rank_0", AllReduces(10, "[0, 1, 2]", kDayNs));
    Write("rank_1", AllReduces(9, "[0, 1, 2]", kDayNs));
    Write("rank_2", AllReduces(launched));
    const CommLog log = Read().value();
    EXPECT_THAT(log.reported, ElementsAre(0, 1));
    EXPECT_EQ(log.ops.size(), 19U);
    EXPECT_FALSE(log.moving);
    EXPECT_THAT(log.blind_spot, HasSubstr("left out, as much older than others: rank_2 (")) << launched;
    EXPECT_EQ(log.counters.at(0).name, "dumps_of_earlier_incidents");
  }
}

TEST_F(FlightRecorder, ALargerJobBeforeLeftMoreDumps) {
  for (int rank = 0; rank < 4; ++rank)
    Write(fmt::format("rank_{}", rank), rank < 2 ? AllReduces(10, "[0, 1]", kDayNs) : AllReduces(10, "[0, 1, 2, 3]"));
  const CommLog log = Read().value();
  EXPECT_THAT(log.reported, ElementsAre(0, 1));
  ASSERT_EQ(log.communicators.size(), 1U);
  EXPECT_THAT(log.communicators[0].ranks, ElementsAre(0, 1));
  EXPECT_THAT(log.blind_spot, HasSubstr("rank_2, rank_3 (the default group has 2 ranks by rank 0, and others, 4"));
  Write("rank_2", AllReduces(10, "[0, 1, 2, 3]", kDayNs));
  Write("rank_3", AllReduces(10, "[0, 1, 2, 3]", kDayNs));
  EXPECT_THAT(Read()->ops, IsEmpty()) << "they are of one day";
  EXPECT_THAT(Read()->blind_spot, HasSubstr("not of one moment"));
}

// An op that was just launched does not hang; one before it may.
TEST_F(FlightRecorder, OfAJobThatMovedItCountsForHowLongAnOpWasUnderWay) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t now_ns = std::chrono::nanoseconds(now).count();
  Write("rank_0", AllReduces(10, "[0, 1]", now_ns - 100'000'000));
  Write("rank_1", AllReduces(9, "[0, 1]", now_ns - 60'000'000'000));
  const CommLog log = Read().value();
  EXPECT_TRUE(log.moving);
  EXPECT_THAT(log.blind_spot, HasSubstr("the job was moving"));
  for (const CommOp& op : log.ops)
    if (op.state != OpState::kCompleted) {
      EXPECT_GE(op.age_ns, op.rank == 0 ? 50'000'000 : 59'000'000'000);
      EXPECT_LT(op.age_ns, op.rank == 0 ? 60'000'000'000 : 3'600'000'000'000);
    }
}

TEST_F(FlightRecorder, TheNumberBehindRankIsTheRank) {
  Write("nccl_trace_rank_0_node10", AllReduces(10));
  Write("rank1_20261118-110000.json", AllReduces(10));
  Write("2.pickle.json", AllReduces(10));
  EXPECT_THAT(Read()->reported, ElementsAre(0, 1, 2));
  Write("ranks_7", AllReduces(10));
  EXPECT_THAT(Read()->damaged, ElementsAre(HasSubstr("ranks_7: rank 7, as its name has it, is in none of its groups "
                                                     "(pg_config): the rank is the number behind \"rank\"")));
  EXPECT_THAT(Message(ReadFlightRecorder({PathOf("ranks_7")}).status()), HasSubstr("is in none of its groups"));
}

// Of a ring: records from `first` on, each of an op of that number and 1.
std::vector<Launch> Ring(int first, int count, const char* state = "scheduled") {
  std::vector<Launch> all;
  for (int i = first; i < first + count; ++i) all.push_back({i, i + 1, 0, "all_reduce", state});
  return all;
}
std::string Uncounted(const std::vector<Launch>& all) {
  return fmt::format(R"({{"pg_config": {{"0": {{"desc": "all", "ranks": "[0, 1]"}}}}, "entries": [{}]}})",
                     EntriesOf(all));
}

// Hosts that ran further ahead than the ring is long. Rings are of one length.
TEST_F(FlightRecorder, WhatRanksAreInMayBeOverwritten) {
  Write("rank_0", Uncounted(Ring(7, 3)));
  Write("rank_1", Uncounted(Ring(6, 3, "started")));
  EXPECT_TRUE(Read()->unseen);
  EXPECT_THAT(Read()->blind_spot, HasSubstr("what 2 rank(s), 0 the first of them, are in may be overwritten"));
  EXPECT_THAT(Read()->blind_spot, HasSubstr("raise TORCH_FR_BUFFER_SIZE"));
  Write("rank_1", Uncounted(Ring(6, 3, "completed")));
  EXPECT_TRUE(Read()->unseen) << "of rank 0";
  Write("rank_1", Uncounted(Ring(0, 2)));
  EXPECT_TRUE(Read()->unseen) << "it is not full yet";
  const std::vector<Launch> gap = {{6, 7, 0, "all_reduce", "scheduled"}, {8, 9, 0, "all_reduce", "scheduled"}};
  for (const std::vector<Launch>& other : {Ring(6, 2), Ring(0, 4), gap}) {
    Write("rank_1", Uncounted(other));
    EXPECT_FALSE(Read()->unseen) << "these are what is under way: " << EntriesOf(other);
  }
  for (const int rank : {0, 1}) Write(fmt::format("rank_{}", rank), Uncounted(Ring(0, 3)));
  EXPECT_FALSE(Read()->unseen) << "all is told";
}

TEST_F(FlightRecorder, WhereCountersTellOfMoreUnderWayThanTheDumpItIsOverwritten) {
  const auto both = [&](const std::string& dump) {
    for (const int rank : {0, 1}) Write(fmt::format("rank_{}", rank), dump);
    return Read()->unseen;
  };
  EXPECT_FALSE(both(CountedDump(Ring(7, 1), 8, 7))) << "they tell all that is under way";
  EXPECT_TRUE(both(CountedDump(Ring(7, 1), 8, 6))) << "of 7, too";
  EXPECT_FALSE(both(CountedDump(Ring(7, 1, "completed"), 8, 6))) << "they lag behind";
  EXPECT_FALSE(both(CountedDump(Ring(0, 1), 2, -1))) << "the ring is not full yet";
  // Whatever the others are like, for dumps of what is under way alone differ in length and lack records.
  Write("rank_0", CountedDump(Ring(7, 3), 10, 1));
  const std::vector<Launch> gap = {{6, 7, 0, "all_reduce", "scheduled"}, {8, 9, 0, "all_reduce", "scheduled"}};
  for (const std::vector<Launch>& other : {Ring(6, 2), Ring(0, 4), gap}) {
    Write("rank_1", CountedDump(other, 10, 6));
    EXPECT_TRUE(Read()->unseen) << EntriesOf(other);
    EXPECT_THAT(Read()->blind_spot, HasSubstr("what 1 rank(s), 0 the first of them"));
  }
}

// Rank 0, of which group 1's third and last collective has not ended. `second`: that the second has. `entries` of it.
std::string DumpOfTwoGroups(bool second, const char* entries) {
  return fmt::format(R"({{"pg_config": {{"0": {{"ranks": "[0, 1]"}}, "1": {{"ranks": "[0, 1]"}}}},
      "pg_status": {{"0": {{"last_enqueued_collective": 9, "last_completed_collective": 8}},
                     "1": {{"last_enqueued_collective": 3, "last_completed_collective": {}}}}},
      "entries": [{}]}})",
                     second ? 2 : 1, entries);
}

// By counters of transfers, too, where they are known to be: then no collective has so high a number.
TEST_F(FlightRecorder, WhereCountersTellOfMoreTransfersUnderWayTheyAreOverwritten) {
  Write("rank_1", Uncounted(Ring(0, 2)));  // of another length: these are dumps of what is under way alone
  const auto lacks = [&](int collective, int ended) {
    Write("rank_0", CountedDump({{17, collective, 8, "recv 0<-1", "scheduled"}}, 8, ended));
    return Read()->unseen;
  };
  EXPECT_TRUE(lacks(0, 6)) << "of 7";
  EXPECT_FALSE(lacks(0, 7)) << "it tells all";
  EXPECT_TRUE(lacks(5, 6));
  EXPECT_FALSE(lacks(6, 6)) << "it may be the sixth collective that has ended";
}

TEST_F(FlightRecorder, WhatCountersTellOfIsOverwrittenInTheRingsOfOtherGroups) {
  constexpr char kThird[] = R"(
    {"record_id": 9, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": 8, "profiling_name": "nccl:barrier",
     "state": "completed"},
    {"record_id": 10, "pg_id": 1, "process_group": ["1", ""], "collective_seq_id": 3, "profiling_name": "nccl:barrier",
     "state": "scheduled"})";
  Write("rank_0", DumpOfTwoGroups(false, kThird));
  EXPECT_TRUE(Read()->unseen) << "the second: in a ring that has something that has ended";
  Write("rank_0", DumpOfTwoGroups(true, kThird));
  EXPECT_FALSE(Read()->unseen) << "it tells all";
  constexpr char kNone[] = R"(
    {"record_id": 11, "pg_id": 0, "process_group": ["0", ""], "collective_seq_id": 9, "profiling_name": "nccl:barrier",
     "state": "scheduled"})";
  Write("rank_0", DumpOfTwoGroups(true, kNone));
  Write("rank_1", Uncounted(Ring(0, 2)));  // of one length with it, as are dumps of what is under way alone
  EXPECT_TRUE(Read()->unseen) << "nothing of the group is left";
}

TEST_F(FlightRecorder, SaysWhatIsWrong) {
  EXPECT_THAT(Error(), testing::EndsWith("no dump of a Flight Recorder; expected a pickle or JSON per rank"));
  for (const char* name : {"second", "first"}) std::filesystem::create_directories(folder_ / name);
  EXPECT_THAT(Error(), HasSubstr("of its 2 folder(s), first the first of them, give the one that has the dumps"));
  Write("rank_0.json", "[]");
  EXPECT_THAT(Message(ReadFlightRecorder({PathOf("rank_0.json")}).status()), HasSubstr("rank_0.json: a bare list"));
  Write("rank_0.json", "{\"a\": 1}");
  EXPECT_THAT(Error(), HasSubstr("rank_0.json: no list \"entries\""));
  EXPECT_THAT(Message(ReadFlightRecorder({PathOf("rank_9.json")}).status()), HasSubstr("No such file"));
  Write("rank_0.json", R"({"entries": [{"state": "started"}]})");
  EXPECT_THAT(Error(), HasSubstr("none of its 1 entries"));
  Write("0.pickle", "\x80\x02N.");
  EXPECT_THAT(Error(), HasSubstr("rank 0 is in"));
  std::filesystem::remove(folder_ / "0.pickle");
  Write("dump.json", kDump);
  EXPECT_THAT(Error(), HasSubstr("dump.json: its name does not tell the rank"));
}

}  // namespace
}  // namespace lockstep::trace
