#include "lockstep/trace/inspector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/json_text.h"
#include "lockstep/base/report.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/trace/comm_files.h"

namespace lockstep::trace {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int64_t kBegin = 1'757'461'015'000'000;  // microseconds

Json Line(int rank, int ranks, int64_t number, int64_t duration_us, const char* id = "0xa", const char* host = "h") {
  return {{"header", {{"id", id}, {"rank", rank}, {"n_ranks", ranks}, {"nnodes", 1}}},
          {"metadata",
           {{"inspector_output_format_version", "v4.0"},
            {"dump_timestamp_us", kBegin},
            {"hostname", host},
            {"pid", 1000 + rank}}},
          {"coll_perf",
           {{"coll", "AllReduce"},
            {"coll_sn", number},
            {"coll_msg_size_bytes", 4096},
            {"coll_exec_time_us", duration_us},
            {"coll_timing_source", "kernel_gpu"},
            {"coll_algobw_gbs", 1.5},
            {"coll_busbw_gbs", 2.5}}}};
}

// With the times of a verbose dump: two channels.
Json Verbose(Json line, int64_t launched_us, int64_t began_us) {
  const int64_t ended = began_us + line["coll_perf"]["coll_exec_time_us"].get<int64_t>();
  line["coll_perf"]["event_trace_ts"] = {
      {"coll_start_ts", launched_us},
      {"coll_stop_ts", launched_us + 5},
      {"kernel_events",
       {{{"channel_id", 0}, {"kernel_start_ts", began_us + 1}, {"kernel_stop_ts", ended}},
        {{"channel_id", 1}, {"kernel_start_ts", began_us}, {"kernel_stop_ts", ended - 1}}}}};
  return line;
}

class Inspector : public testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<Json>& lines, const std::string& more = "") const {
    std::string text;
    for (const Json& line : lines) text += OneLine(line) + "\n";
    return folder_.Write(name, text + more);
  }
  static uint64_t Counted(const CommLog& log, const std::string& name) {
    const auto found = std::find_if(log.counters.begin(), log.counters.end(),
                                    [&](const Counter& counter) { return counter.name == name; });
    return found == log.counters.end() ? 0 : found->count;
  }

  const TestFolder folder_;
};

TEST_F(Inspector, OpsHaveEnded) {
  Write("h-pid1000.log", {Line(0, 2, 7, 300), Line(0, 2, 8, 100)});
  Write("h-pid1001.log", {Line(1, 2, 7, 50)});
  const auto log = ReadCommFiles({folder_.path()});
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1));
  ASSERT_EQ(log->communicators.size(), 1U);
  EXPECT_EQ(log->communicators[0].name, "0xa");
  EXPECT_THAT(log->communicators[0].ranks, ElementsAre(0, 1));
  ASSERT_EQ(log->ops.size(), 3U);
  EXPECT_THAT(log->ops, Each(AllOf(Field(&CommOp::state, OpState::kCompleted), Field(&CommOp::bytes, 4096U),
                                   Field(&CommOp::created_ns, -1), Field(&CommOp::alone_ns, -1))));
  EXPECT_EQ(log->functions[log->ops[2].function], "AllReduce");
  EXPECT_EQ(log->ops[0].duration_ns, 300'000);
  EXPECT_EQ(log->ops[2].rank, 1);
  EXPECT_THAT(log->blind_spot, HasSubstr("NCCL_INSPECTOR_DUMP_VERBOSE=1"));
  EXPECT_THAT(log->counters, IsEmpty());
}

TEST_F(Inspector, FunctionsAreCommunicatorsOfTheirOwn) {
  Json gather = Line(0, 2, 7, 20);
  gather["coll_perf"]["coll"] = "AllGather";
  const auto log = ReadInspector({Write("one", {Line(0, 2, 7, 300), gather})});
  ASSERT_EQ(log->communicators.size(), 2U);
  EXPECT_NE(log->ops[0].communicator, log->ops[1].communicator);
  EXPECT_THAT(log->communicators, Each(Field(&Communicator::ranks, ElementsAre(0, 1))));
  EXPECT_EQ(Counted(*log, "ops_told_twice"), 0U);
}

TEST_F(Inspector, RanksAreThoseOfTheLargestCommunicator) {
  Write("a", {Line(0, 4, 0, 1), Line(2, 4, 0, 1), Line(3, 4, 0, 1)});
  Json first = Line(2, 4, 5, 9, "0xb"), second = Line(3, 4, 5, 9, "0xb"), stranger = Line(1, 2, 5, 9, "0xc", "other");
  for (Json* line : {&first, &second}) (*line)["header"]["n_ranks"] = 2;
  first["header"]["rank"] = 1;
  second["header"]["rank"] = 0;
  Write("b", {first, second, stranger});
  const auto log = ReadInspector({folder_.path()});
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 2, 3));
  ASSERT_EQ(log->communicators.size(), 2U);
  EXPECT_THAT(log->communicators[0].ranks, ElementsAre(0, 1, 2, 3)) << "rank 1 has no file, and is known";
  EXPECT_THAT(log->communicators[1].ranks, ElementsAre(3, 2)) << "by their place";
  EXPECT_EQ(Counted(*log, "processes_outside_of_the_largest_communicator"), 1U);
}

// A container for each GPU: all are process 1 of the host.
TEST_F(Inspector, RanksMayAllBeToldAsOneProcess) {
  std::vector<Json> lines;
  for (int rank = 0; rank < 3; ++rank) lines.push_back(Line(rank, 3, 7, 100 + rank));
  lines.push_back(Line(1, 2, 7, 9, "0xb"));
  for (Json& line : lines) line["metadata"]["pid"] = 1;
  const auto log = ReadInspector({Write("a", lines)});
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2));
  std::vector<std::pair<int, int64_t>> told;
  for (const CommOp& op : log->ops) told.emplace_back(op.rank, op.duration_ns);
  EXPECT_THAT(told, ElementsAre(std::pair(0, 100'000), std::pair(1, 101'000), std::pair(2, 102'000)));
  EXPECT_EQ(Counted(*log, "ranks_of_one_process"), 3U);
}

TEST_F(Inspector, OfSeveralEqualTheNewestCounts) {
  Json newer = Line(1, 2, 0, 1, "0x9");
  newer["metadata"]["dump_timestamp_us"] = kBegin + 1;
  newer["metadata"]["pid"] = 77;
  const auto log = ReadInspector({Write("a", {Line(0, 2, 0, 1), newer})});
  EXPECT_THAT(log->reported, ElementsAre(1));
  EXPECT_EQ(Counted(*log, "processes_outside_of_the_largest_communicator"), 1U);
}

TEST_F(Inspector, TimesAreThoseOfTheKernels) {
  const auto log = ReadInspector({Write("a", {Verbose(Line(0, 2, 0, 100), kBegin, kBegin + 1000),
                                              Verbose(Line(0, 2, 1, 100), kBegin + 10, kBegin + 1500)})});
  ASSERT_EQ(log->ops.size(), 2U);
  EXPECT_EQ(log->ops[0].created_ns, (kBegin + 1000) * 1000) << "the host launches long before the device begins";
  EXPECT_EQ(log->ops[0].alone_ns, -1) << "nothing before it is known";
  EXPECT_EQ(log->ops[1].alone_ns, 400'000);
  EXPECT_THAT(log->blind_spot, Not(HasSubstr("NCCL_INSPECTOR")));
}

TEST_F(Inspector, WhatIsMissingBetweenIsNotTimeAlone) {
  Json other = Verbose(Line(0, 2, 0, 100), kBegin, kBegin + 3500);
  other["coll_perf"]["coll"] = "AllGather";
  std::vector<Json> lines = {other};
  for (const int64_t number : {0, 1, 3, 4})
    lines.push_back(Verbose(Line(0, 2, number, 100), kBegin, kBegin + 1000 + number * 1000));
  const auto log = ReadInspector({Write("a", lines)});
  ASSERT_EQ(log->ops.size(), 5U);
  EXPECT_EQ(log->functions[log->ops[0].function], "AllGather");
  std::vector<int64_t> alone;
  for (const CommOp& op : log->ops) alone.push_back(op.alone_ns);
  EXPECT_THAT(alone, ElementsAre(-1, -1, 900'000, -1, 900'000)) << "number 2 may have been anywhere from 1 to 3";
}

TEST_F(Inspector, WhereThereAreTransfersTimeAloneIsNotKnown) {
  Json transfer = Line(0, 2, 0, 100);
  transfer["p2p_perf"] = transfer["coll_perf"];
  transfer.erase("coll_perf");
  const auto log = ReadInspector({Write("a", {transfer, Verbose(Line(0, 2, 0, 100), kBegin, kBegin + 1000),
                                              Verbose(Line(0, 2, 1, 100), kBegin, kBegin + 1500)})});
  EXPECT_THAT(log->ops, Each(Field(&CommOp::alone_ns, -1)));
  EXPECT_THAT(log->blind_spot, HasSubstr("they sent or received"));
  EXPECT_EQ(Counted(*log, "transfers_left_out"), 1U);
  EXPECT_EQ(Counted(*log, "unreadable_lines"), 0U);
}

TEST_F(Inspector, WithoutKernelsTheHostsLaunchIsTheTime) {
  Json line = Verbose(Line(0, 2, 0, 100), kBegin, kBegin + 1000);
  Json open = line;
  open["coll_perf"]["coll_sn"] = 1;
  open["coll_perf"]["event_trace_ts"]["kernel_events"][1]["kernel_stop_ts"] = 0;
  line["coll_perf"]["event_trace_ts"].erase("kernel_events");
  const auto log = ReadInspector({Write("a", {line, open})});
  EXPECT_THAT(log->ops, Each(AllOf(Field(&CommOp::created_ns, kBegin * 1000), Field(&CommOp::alone_ns, -1))));
  EXPECT_THAT(log->blind_spot, HasSubstr("DUMP_MIN_SIZE_BYTES=0"));
}

TEST_F(Inspector, ClocksOfHostsAreFitted) {
  constexpr int64_t kAhead = 5'000'000;
  std::vector<Json> lines;
  for (int64_t number = 0; number < 9; ++number)
    for (const int rank : {0, 1})
      lines.push_back(Verbose(Line(rank, 2, number, 100, "0xa", rank == 0 ? "h" : "i"), kBegin,
                              kBegin + number * 1000 + (rank == 0 ? 0 : kAhead)));
  const auto log = ReadInspector({Write("a", lines)});
  ASSERT_EQ(log->ops.size(), 18U);
  EXPECT_NEAR(static_cast<double>(log->ops[0].created_ns - log->ops[9].created_ns), 0, 1000);
}

TEST_F(Inspector, LinesThatCantBeReadAreCounted) {
  std::vector<Json> bad(12, Line(0, 2, 1, 100));
  bad[0]["header"]["rank"] = -1;
  bad[1]["header"]["rank"] = 2;
  bad[2]["header"]["n_ranks"] = 1'000'000'000'000;
  bad[3]["header"]["id"] = Json::array();
  bad[4]["metadata"].erase("pid");
  bad[5]["metadata"]["hostname"] = 3;
  bad[6]["coll_perf"]["coll_sn"] = "1";
  bad[7]["coll_perf"]["coll_exec_time_us"] = -5;
  bad[8]["coll_perf"]["coll_exec_time_us"] = UINT64_MAX;
  bad[9]["coll_perf"] = Json::array();
  bad[10] = Json::array();
  bad[11] = 1e300;
  const std::string torn = OneLine(Line(0, 2, 2, 100)).substr(0, 150);
  const std::string path =
      Write("a", bad, OneLine(Line(0, 2, 0, 100)) + "\n\n{\"header\": \"\xff\xfe\"}\n[1e999]\n" + torn);
  const auto log = ReadInspector({path});
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->ops.size(), 1U);
  EXPECT_EQ(Counted(*log, "unreadable_lines"), 15U);
}

TEST_F(Inspector, TimesWithoutSenseAreNotTaken) {
  std::vector<Json> lines;
  lines.reserve(6);
  for (int64_t number = 0; number < 4; ++number)
    lines.push_back(Verbose(Line(0, 2, number, 100), kBegin, kBegin + number * 1000));
  lines.push_back(Verbose(Line(0, 2, 4, 100), 1, 2));
  lines.push_back(Line(0, 2, 5, 100));
  lines.back()["coll_perf"]["event_trace_ts"] = {{"coll_start_ts", INT64_MAX}, {"kernel_events", {1, "x", nullptr}}};
  const auto log = ReadInspector({Write("a", lines)});
  ASSERT_EQ(log->ops.size(), 6U);
  EXPECT_EQ(log->ops[4].created_ns, -1);
  EXPECT_EQ(log->ops[5].created_ns, -1);
  EXPECT_EQ(Counted(*log, "times_without_sense"), 1U);
}

TEST_F(Inspector, WhatIsToldTwiceCountsOnce) {
  Json impostor = Line(0, 2, 0, 100);
  impostor["metadata"]["pid"] = 5;
  const auto log = ReadInspector({Write("a", {Line(0, 2, 0, 100), impostor, Line(0, 2, 0, 200), Line(1, 2, 0, 1)})});
  EXPECT_THAT(log->reported, ElementsAre(0, 1));
  EXPECT_EQ(log->ops.size(), 2U);
  EXPECT_EQ(Counted(*log, "ranks_told_twice"), 1U);
  EXPECT_EQ(Counted(*log, "ops_told_twice"), 1U);
}

TEST_F(Inspector, AFileWithoutAGoodLineIsRefused) {
  const std::string torn = Write("torn", {}, "\n{\"header\":{\"id\":\"0xa\",\"ra");
  const auto log = ReadCommFiles({torn});
  EXPECT_EQ(log.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(log.status()), AllOf(HasSubstr(torn + ":2: "), HasSubstr("expected an object with header")));
  EXPECT_THAT(Message(ReadInspector({folder_ / "none"}).status()), HasSubstr("none"));
  EXPECT_FALSE(ReadInspector({folder_.path()}).ok());
  Write("good", {Line(0, 1, 0, 1)});
  Write("other.prom", {}, "# HELP\n");
  const auto rest = ReadCommFiles({folder_.path()});
  ASSERT_TRUE(rest.ok()) << rest.status();
  EXPECT_THAT(rest->damaged, ElementsAre(HasSubstr(torn)));
  EXPECT_EQ(Counted(*rest, "damaged_files"), 1U);
  EXPECT_EQ(Counted(*rest, "other_files"), 1U);
}

TEST_F(Inspector, IsKnownByItsContent) {
  EXPECT_TRUE(HasInspector(Write("a", {}, " {\n \"header\": {")));
  EXPECT_TRUE(HasInspector(Write("b", {}, R"({"coll_perf": {}, "header": {}})")));
  EXPECT_FALSE(HasInspector(Write("c", {}, R"({"entries": []})")) || HasInspector(Write("d", {}, "\"coll_perf\"")));
  EXPECT_FALSE(HasInspector(Write("e", {}, "{")) || HasInspector(folder_ / "none"));
}

}  // namespace
}  // namespace lockstep::trace
