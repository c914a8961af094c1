#include "lockstep/trace/ras_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "lockstep/base/test_folder.h"
#include "lockstep/trace/comm_files.h"

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Two groups: one communicator of 8 ranks, four of 2.
std::string Text(const std::string& errors, const std::string& warnings, const std::string& column = "MISMATCH") {
  return "NCCL version 2.27.3 compiled with CUDA 12.9\n"
         "CUDA runtime version 12090, driver version 12090\n\n"
         "Job summary\n===========\n\n"
         "  Nodes  Processes         GPUs  Processes     GPUs\n"
         "(total)   per node  per process    (total)  (total)\n"
         "      2          4            1          8        8\n\n"
         "Communicators... (0.12s)\n=============\n\n"
         "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
         "    #  in group  per comm  per node  per comm  in group\n"
         "    0         4         1         2         2         8   RUNNING      OK\n"
         "    1         1         2         4         8         8   RUNNING  " +
         column + "\n\nErrors\n======\n\n" + errors + "\nWarnings\n========\n\n" + warnings;
}

std::string Managed(int gpu, int pid, const std::string& node) {
  return fmt::format("GPU {} managed by process {} on node {}", gpu, pid, node);
}

// Rank 3 of the largest one is behind.
std::string Behind() {
  return "#1-0 (cf264af53edbe986) MISMATCH\n"
         "  Communicator ranks have different AllReduce operation counts\n"
         "  7 ranks have launched up to operation 6650\n"
         "  Rank 3 has launched up to operation 6649 -- " +
         Managed(3, 1003, "10.0.0.1") + "\n";
}

std::string Missing(const std::string& job =
                        "DEAD\n  1 job process is considered dead (unreachable via the RAS "
                        "network)\n") {
  return job + "  Process 1007 on node 10.0.0.2 managing GPU 3\n\n" +
         "#1-0 (cf264af53edbe986) INCOMPLETE\n"
         "  Missing communicator data from 1 rank\n"
         "  Rank 7 -- " +
         Managed(3, 1007, "10.0.0.2") + "\n";
}

uint64_t Counted(const CommLog& log, const std::string& name) {
  const auto found = std::find_if(log.counters.begin(), log.counters.end(),
                                  [&](const Counter& counter) { return counter.name == name; });
  return found == log.counters.end() ? 0 : found->count;
}

TEST(RasText, WhoLaunchedMoreIsInItsNewestCollective) {
  const auto log = ReadRasText(Text("", Behind()));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  ASSERT_EQ(log->ops.size(), 7U) << "the seven that are not named are all but the one that is";
  for (const CommOp& op : log->ops) {
    EXPECT_NE(op.rank, 3);
    EXPECT_EQ(log->functions[op.function], "AllReduce");
    EXPECT_EQ(log->communicators[op.communicator].name, "cf264af53edbe986");
    EXPECT_EQ(op.sequence, 6650);
    EXPECT_EQ(op.state, OpState::kScheduled);
  }
  ASSERT_EQ(log->counts.size(), 8U);
  EXPECT_EQ(log->counts[3].enqueued, 6649);
  EXPECT_TRUE(log->moving);
  EXPECT_THAT(log->counters, IsEmpty());
  EXPECT_THAT(log->damaged, IsEmpty());
}

TEST(RasText, WhereSeveralCommunicatorsAreTheLargestItSaysSo) {
  std::string text = Text("", Behind());
  EXPECT_THAT(ReadRasText(text)->blind_spot, testing::Not(HasSubstr("as large")));
  EXPECT_EQ(ReadRasText(text)->processes.at(3), "GPU 3 of process 1003 on 10.0.0.1");
  const std::string row = "    1         1         2         4         8";
  text.replace(text.find(row), row.size(), "    1         2         2         4         8");
  EXPECT_THAT(
      ReadRasText(text)->blind_spot,
      testing::EndsWith("; 2 communicators are as large as the largest: where they have other ranks, a rank is a "
                        "place in communicator cf264af53edbe986"));
}

// Of two pipelines of 8 ranks, say: the summary counts all 16, of one kind of node or of two.
TEST(RasText, WhereNoCommunicatorHasTheWholeJobRanksArePlacesInTheLargest) {
  const std::string row = "      2          4            1          8        8";
  for (const std::string rows : {"      4          4            1         16       16",
                                 "      2          4            1          8        8\n"
                                 "      1          4            2          4        8"}) {
    std::string text = Text("", Behind());
    EXPECT_EQ(ReadRasText(text)->numbered_in, "");
    text.replace(text.find(row), row.size(), rows);
    const CommLog log = ReadRasText(text).value();
    EXPECT_EQ(log.numbered_in, "communicator cf264af53edbe986");
    EXPECT_THAT(log.blind_spot, testing::EndsWith("; no communicator has all 16 processes: ranks are places in "
                                                  "communicator cf264af53edbe986, which has 8"));
  }
}

TEST(RasText, ASetOfRanksIsNamedBelowItsNumber) {
  const auto log = ReadRasText(Text("",
                                    "#1-0 (cf26) MISMATCH\n"
                                    "  Communicator ranks have different collective operation counts\n"
                                    "  5 ranks have launched up to operation 12\n"
                                    "  2 ranks have launched up to operation 11\n"
                                    "  Rank 0 -- GPU 0 (NVML 4) managed by process 1000 on node 10.0.0.1\n"
                                    "  Rank 6 -- [process information not found]\n"
                                    "  Rank 2 has not launched any operations -- " +
                                        Managed(2, 1002, "10.0.0.1") + "\n"));
  ASSERT_TRUE(log.ok()) << log.status();
  std::vector<int64_t> counts;
  for (const CommCount& count : log->counts) counts.push_back(count.enqueued);
  EXPECT_THAT(counts, ElementsAre(11, 12, 0, 12, 12, 12, 11, 12));
  EXPECT_EQ(log->functions.front(), "collective") << "until NCCL 2.26 one number counts all functions";
  EXPECT_EQ(log->ops.size(), 7U);
  EXPECT_THAT(log->counters, IsEmpty());
}

TEST(RasText, WhoIsNotNamedIsNotGuessed) {
  const auto log = ReadRasText(Text("",
                                    "#1-0 (cf26) MISMATCH\n"
                                    "  Communicator ranks have different AllReduce operation counts\n"
                                    "  4 ranks have launched up to operation 12\n"
                                    "  4 ranks have launched up to operation 11\n"));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->ops, IsEmpty());
  EXPECT_THAT(log->counts, IsEmpty());
  EXPECT_EQ(Counted(*log, "ranks_not_named"), 8U);
  EXPECT_THAT(log->blind_spot, HasSubstr("AllReduce: 4 up to 12, 4 up to 11"));
}

TEST(RasText, WhoIsMissingDidNotReport) {
  const auto log = ReadRasText(Text(Missing(), Behind(), "INCOMPLETE,MISMATCH"));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_THAT(log->reported, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(log->remarks.at(7), HasSubstr("considered dead"));
  EXPECT_THAT(log->damaged, ElementsAre("rank 7, GPU 3 of process 1007 on 10.0.0.2: considered dead by NCCL's RAS"));
  EXPECT_EQ(Counted(*log, "ranks_not_named"), 7U) << "seven, and one named, and one missing are not eight";
  const auto incomplete =
      ReadRasText(Text(Missing("INCOMPLETE\n  Missing communicator data from 1 job process\n"), "", "INCOMPLETE"));
  EXPECT_THAT(incomplete->remarks.at(7), HasSubstr("does not answer"));
  EXPECT_THAT(incomplete->ops, IsEmpty()) << "how much the others have launched is not told";
}

TEST(RasText, ForWhoIsMissingAllWaitButWhoIsBehindMayNot) {
  std::string warnings = Behind();
  warnings.replace(warnings.find("7 ranks"), 1, "6");
  const auto log = ReadRasText(Text(Missing(), warnings, "INCOMPLETE,MISMATCH"));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->ops.size(), 6U);
  for (const CommOp& op : log->ops) EXPECT_NE(op.rank, 3) << "it is in none that is known";
  EXPECT_THAT(log->may_wait, ElementsAre(3));
  EXPECT_THAT(log->communicators.back().ranks, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(log->counters, ElementsAre(testing::Field(&Counter::name, "silent_processes")));
}

TEST(RasText, MissingRanksMayBeAList) {
  const auto log =
      ReadRasText(Text("#1-0 (cf26) INCOMPLETE\n"
                       "  Missing communicator data from 3 ranks\n"
                       "  The missing ranks: 1, 4-5\n",
                       "", "INCOMPLETE"));
  EXPECT_THAT(log->reported, ElementsAre(0, 2, 3, 6, 7));
  const auto cut =
      ReadRasText(Text("#1-0 (cf26) INCOMPLETE\n  Missing communicator data from 3 ranks\n", "", "INCOMPLETE"));
  EXPECT_THAT(cut->reported, IsEmpty()) << "which are missing is not told";
  EXPECT_EQ(Counted(*cut, "members_not_known"), 8U);
}

TEST(RasText, RanksOfSmallerCommunicatorsAreKnownByTheirProcesses) {
  const std::string small =
      "#0-1 (27a0) MISMATCH\n"
      "  Communicator ranks have different AllGather operation counts\n"
      "  Rank 0 has launched up to operation 8 -- " +
      Managed(2, 1002, "10.0.0.1") + "\n  Rank 1 has launched up to operation 7 -- " + Managed(3, 1003, "10.0.0.1") +
      "\n";
  const auto unknown = ReadRasText(Text("", small));
  EXPECT_EQ(Counted(*unknown, "ranks_outside_of_the_largest_communicator"), 2U);
  EXPECT_THAT(unknown->ops, IsEmpty());
  EXPECT_THAT(unknown->blind_spot, HasSubstr("rank 1 of communicator 27a0, GPU 3 of process 1003 on 10.0.0.1 "
                                             "(AllGather up to 7)"));
  const auto half = ReadRasText(Text("", Behind() + small));
  EXPECT_THAT(half->communicators[1].ranks, ElementsAre(3));
  EXPECT_EQ(half->ops.size(), 7U) << "who waits for nobody known is in nothing";
  const std::string of_all =
      "#1-0 (cf26) MISMATCH\n  Communicator ranks have different status\n"
      "  Rank 2 has status INIT -- " +
      Managed(2, 1002, "10.0.0.1") + "\n  Rank 3 has status FINALIZE -- " + Managed(3, 1003, "10.0.0.1") + "\n";
  const auto both = ReadRasText(Text("", of_all + small));
  ASSERT_EQ(both->ops.size(), 1U);
  EXPECT_EQ(both->ops[0].rank, 2);
  EXPECT_THAT(both->communicators.back().ranks, ElementsAre(2, 3));
  EXPECT_THAT(both->remarks.at(3), HasSubstr("status (FINALIZE)"));
}

TEST(RasText, ErrorsAreRemarks) {
  const auto log =
      ReadRasText(Text("#1-0 (cf26) ERROR\n"
                       "  Asynchronous errors on 2 ranks\n"
                       "  Rank 5 reported Remote process error -- " +
                           Managed(1, 1005, "10.0.0.2") +
                           "\n  Rank 6 reported System error -- [process information not found]\n"
                           "  Initialization error on 1 rank\n"
                           "  Rank 1 reported Invalid usage -- [process information not found]\n",
                       "TIMEOUT\n  Encountered 2 communication timeouts while gathering data\n", "ERROR"));
  EXPECT_EQ(log->remarks.at(5), "has an asynchronous error of NCCL (Remote process error)");
  EXPECT_EQ(log->remarks.at(6), "has an asynchronous error of NCCL (System error)");
  EXPECT_EQ(log->remarks.at(1), "has an error of its initialization of NCCL (Invalid usage)");
  EXPECT_EQ(Counted(*log, "ras_timeouts"), 2U);
  EXPECT_EQ(Counted(*log, "lines_not_understood"), 0U);
}

TEST(RasText, WhatIsAmissIsCounted) {
  EXPECT_EQ(Counted(*ReadRasText(Text("", "")), "groups_with_errors_not_told"), 1U);
  EXPECT_EQ(Counted(*ReadRasText(Text("", "something new\n#1-0 (cf26) STRANGE\n  of another kind\n")),
                    "lines_not_understood"),
            2U);
  const std::string whole = Text("", Behind());
  EXPECT_EQ(Counted(*ReadRasText(whole.substr(0, whole.find("Warnings"))), "sections_missing"), 1U);
  const auto alone =
      ReadRasText(Text("DEAD\n  2 job processes are considered dead (unreachable via the RAS network)\n"
                       "  Process 5 on node 10.0.0.9 managing GPUs 0,1\n"
                       "  [could not find information on 1 process]\n",
                       ""));
  EXPECT_THAT(alone->damaged, ElementsAre(HasSubstr("GPU 0 of process 5"), HasSubstr("GPU 1 of process 5")));
  EXPECT_EQ(Counted(*alone, "processes_not_told"), 1U);
}

TEST(RasText, NamesBelowAnUnknownLineBelongToNothingAbove) {
  const auto log =
      ReadRasText(Text("#1-0 (cf26) INCOMPLETE\n"
                       "  Missing communicator data from 1 rank\n"
                       "  The missing rank: 1\n"
                       "  Something else of 1 rank\n"
                       "  Rank 5 -- [process information not found]\n",
                       "", "INCOMPLETE"));
  EXPECT_THAT(log->reported, ElementsAre(0, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(Counted(*log, "lines_not_understood"), 2U);
  const auto numbers = ReadRasText(Text("", Behind() + "  8 ranks have ended up to operation 6\n"
                                                       "  Rank 5 -- [process information not found]\n"));
  EXPECT_EQ(Counted(*numbers, "lines_not_understood"), 2U);
  EXPECT_EQ(numbers->counts.size(), 8U);
}

TEST(RasText, HostileNumbersAreNotUnderstood) {
  for (const char* line :
       {"  Rank -1 has launched up to operation 5 -- x\n", "  Rank 8 has launched up to operation 5\n",
        "  Rank 99999999999999999999 -- x\n", "  9 ranks have launched up to operation 5\n",
        "  -3 ranks have launched up to operation 5\n", "  2 ranks have launched up to operation -5\n",
        "  Rank one has status X\n", "  Rank\n", "  The missing ranks: 5-2\n", "  The missing ranks: 0-99999999999\n",
        "  Rank \xff\xfe -- \xff\n"}) {
    const auto log = ReadRasText(Text("",
                                      "#1-0 (cf26) MISMATCH\n"
                                      "  Communicator ranks have different AllReduce operation counts\n" +
                                          std::string(line)));
    ASSERT_TRUE(log.ok());
    EXPECT_EQ(Counted(*log, "lines_not_understood"), 1U) << line;
    EXPECT_THAT(log->counts, IsEmpty()) << line;
  }
  const auto twice = ReadRasText(Text("", Behind() + "  Rank 3 has launched up to operation 6651 -- x\n"));
  EXPECT_EQ(Counted(*twice, "ranks_told_twice"), 1U);
}

TEST(RasText, WhatIsNoStatusIsRefused) {
  EXPECT_THAT(Message(ReadRasText("SERVER PROTOCOL 2\nOK\n{}").status()), HasSubstr("no section \"Communicators\""));
  const auto none = ReadRasText("Communicators... (0.0s)\n====\n\nNo communicator data collected!\n");
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(none.status()), HasSubstr("no communicators"));
  std::string huge = Text("", "");
  huge.replace(huge.find("         8         8   RUNNING"), 18, " 99999999999     8");
  EXPECT_EQ(Counted(*ReadRasText(huge), "lines_not_understood"), 1U);
  EXPECT_TRUE(IsRasText("NCCL version 2.24.3 compiled with CUDA 12.2\n") && IsRasText("\nJob summary\r\n"));
  EXPECT_FALSE(IsRasText("{\"nccl_version\": \"2.28.7\"}") || IsRasText("") || IsRasText("NCCL version 2.24.3\n"));
}

TEST(RasText, AFileIsKnownByItsContent) {
  const TestFolder folder;
  const std::string path = folder.Write("ras_status_3.json", Text("", Behind()));
  const std::string damaged = folder.Write("ras_damaged", "SERVER PROTOCOL 2\nOK\n");
  EXPECT_EQ(ReadCommFiles({path})->ops.size(), 7U);
  EXPECT_THAT(Message(ReadCommFiles({path, path}).status()), HasSubstr("expected it alone"));
  EXPECT_THAT(Message(ReadCommFiles({damaged}).status()), HasSubstr(damaged + ": no section"));
}

TEST(RasText, EveryPrefixIsReadOrRefused) {
  const std::string text = Text(Missing(), Behind());
  for (size_t length = 0; length <= text.size(); ++length) {
    const auto log = ReadRasText(text.substr(0, length));
    EXPECT_TRUE(log.ok() || log.status().code() == absl::StatusCode::kInvalidArgument) << log.status();
  }
}

}  // namespace
}  // namespace lockstep::trace
