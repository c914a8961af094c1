#include "lockstep/detect/comm_hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <regex>

#include "lockstep/base/test_folder.h"
#include "lockstep/detect/comm_test_job.h"
#include "lockstep/detect/diagnosis.h"
#include "lockstep/trace/comm_files.h"
#include "lockstep/trace/flight_recorder.h"
#include "lockstep/trace/ras_text.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::OpState;

TEST(CommHang, NobodyWaitsWhereAllHaveEnded) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, 9, 9);
  EXPECT_THAT(job.Diagnose().findings, IsEmpty());
}

TEST(CommHang, OfManyEndsSomeAreEvidence) {
  Job job;
  std::vector<int> all(1024);
  std::iota(all.begin(), all.end(), 0);
  const uint32_t world = job.AddGroup(all);
  for (const int rank : all) job.Collectives(world, rank, 9, 9 + rank % 2);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1u);
  EXPECT_EQ(diagnosis.findings[0].suspects.size(), 512u);
  EXPECT_EQ(diagnosis.findings[0].evidence.size(), 9u);
  EXPECT_EQ(diagnosis.findings[0].evidence.back(), "... and 504 more ranks");
  EXPECT_LT(incident::Headline(diagnosis.findings[0]).size(), 600u);
}

// A message is lost, and one member had got all that it needed before.
TEST(CommHang, OfThoseLeftInAnOpTheWayToWhoHeardLeastIsNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, rank == 3 ? 10 : 9, rank == 3 ? 11 : 10);
  for (trace::CommOp& op : job.log().ops) {
    if (op.state == OpState::kCompleted) continue;
    op.messages = op.rank == 1 ? 2 : 4;
    op.waits_for = (op.rank + 1) % 4;
  }
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  const Finding& finding = diagnosis.findings[0];
  EXPECT_EQ(finding.syndrome, Syndrome::kCommunicationHang);
  ASSERT_EQ(finding.suspects.size(), 1U);
  EXPECT_EQ(finding.suspects[0].name, "2->1");
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(2, 1));
  EXPECT_FALSE(finding.certain);
}

// Rank 0 launched one more than rank 1, which waits for it elsewhere: they wait whatever rank 3 does.
TEST(CommHang, ACircleBesideARankThatToldNothingIsNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3}), pair = job.AddGroup({0, 1});
  job.Collectives(world, 0, 1, 1);
  job.Collectives(pair, 0, 1, 2);
  job.Collectives(pair, 1, 1, 1);
  for (const int rank : {1, 2}) job.Collectives(world, rank, 1, 2);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_THAT(diagnosis.findings[0].evidence,
              ElementsAre(HasSubstr("rank 0 waits in all_reduce 2 of communicator 1 for rank 1"),
                          HasSubstr("ranks 1, 2 wait in all_reduce 2 of communicator 0 for ranks 0, 3")));
  EXPECT_THAT(RanksOf(diagnosis.findings[1].suspects), ElementsAre(3));
  job.Collectives(pair, 1, 1, 2);
  ASSERT_EQ(job.Diagnose().findings.size(), 1U) << "rank 1 may have both under way";
  EXPECT_THAT(Named(job.Diagnose()), ElementsAre(3));
}

// Their hosts run ahead, so all have launched it.
TEST(CommHang, WhoseDeviceHasNotComeIsNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, 9, 12);
  const auto absent = [&](int rank, bool is) {
    for (trace::CommOp& op : job.log().ops)
      if (op.rank == rank && op.sequence == 10) op.awaits_device = is;
  };
  absent(2, true);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  const Finding& finding = diagnosis.findings[0];
  EXPECT_EQ(finding.syndrome, Syndrome::kNonCommunicationHang);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(2));
  EXPECT_THAT(finding.evidence.at(0), HasSubstr("the device of rank 2 has not come to it"));
  EXPECT_FALSE(finding.certain);
  EXPECT_EQ(finding.probe, "what runs on the devices of rank 2");
  for (const int rank : {0, 1, 3}) absent(rank, true);
  EXPECT_EQ(job.Diagnose().findings.at(0).syndrome, Syndrome::kCommunicationHang) << "what holds all is something else";
  absent(3, false);
  EXPECT_THAT(Named(job.Diagnose()), ElementsAre(0, 1, 2));
}

TEST(CommHang, WhoHasNotLaunchedIsNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, 9, rank == 2 ? 9 : 10);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  const Finding& finding = diagnosis.findings[0];
  EXPECT_EQ(finding.syndrome, Syndrome::kNonCommunicationHang);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(2));
  EXPECT_TRUE(finding.certain);
  EXPECT_THAT(
      finding.evidence,
      ElementsAre(HasSubstr("ranks 0, 1, 3 wait in all_reduce 10 of communicator 0; rank 2 has launched up to 9")));
  EXPECT_THAT(diagnosis.no_report, IsEmpty());
}

TEST(CommHang, WhoIsBehindInTheTextOfRasIsNamed) {
  const auto log = trace::ReadRasText(
      "Communicators... (0.00s)\n=============\n\n"
      "    0         1         1         4         4         4   RUNNING  MISMATCH\n\n"
      "Errors\n======\n\nWarnings\n========\n\n"
      "#0-0 (cf264af53edbe986) MISMATCH\n"
      "  Communicator ranks have different AllReduce operation counts\n"
      "  3 ranks have launched up to operation 6650\n"
      "  Rank 2 has launched up to operation 6649 -- GPU 2 managed by process 12 on node 10.0.0.1\n");
  ASSERT_TRUE(log.ok()) << log.status();
  const CommDiagnosis diagnosis = DiagnoseCommunication(*log);
  EXPECT_THAT(Named(diagnosis), ElementsAre(2));
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_FALSE(diagnosis.findings[0].certain) << "the job may have been running";
  EXPECT_THAT(diagnosis.findings[0].evidence, ElementsAre(HasSubstr("rank 2 has launched up to 6649")));
}

TEST(CommHang, WhereARankIsMissingInAStatusOfRasWhoIsBehindIsAsGood) {
  const auto log = trace::ReadRasText(
      "Communicators... (0.00s)\n=============\n\n"
      "    0         1         1         4         4         4   RUNNING  INCOMPLETE,MISMATCH\n\n"
      "Errors\n======\n\n#0-0 (cf264af53edbe986) INCOMPLETE\n"
      "  Missing communicator data from 1 rank\n"
      "  The missing rank: 3\n\n"
      "Warnings\n========\n\n"
      "#0-0 (cf264af53edbe986) MISMATCH\n"
      "  Communicator ranks have different AllReduce operation counts\n"
      "  2 ranks have launched up to operation 6650\n"
      "  Rank 2 has launched up to operation 6649 -- GPU 2 managed by process 12 on node 10.0.0.1\n");
  ASSERT_TRUE(log.ok()) << log.status();
  const CommDiagnosis diagnosis = DiagnoseCommunication(*log);
  EXPECT_THAT(Named(diagnosis), ElementsAre(3));
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(2));
  EXPECT_THAT(
      diagnosis.findings[0].evidence,
      ElementsAre(
          HasSubstr("ranks 0, 1 wait in AllReduce 6650"),
          HasSubstr(
              "ranks 0, 1 wait in AllReduce 6650 of communicator cf264af53edbe986; rank 2 has launched up to 6649")));
}

TEST(CommHang, WithoutTimesACompletedLogIsNoCleanBill) {
  const TestFolder folder;
  const auto log = trace::ReadCommFiles({folder.Write(
      "inspector.log", R"({"header": {"id": "0xa", "rank": 0, "n_ranks": 1}, "metadata": {"hostname": "h", "pid": 1},)"
                       R"( "coll_perf": {"coll": "AllReduce", "coll_sn": 1, "coll_exec_time_us": 9}})")});
  ASSERT_TRUE(log.ok()) << log.status();
  const Json report = DiagnosisReport(DiagnoseCommunication(*log), *log);
  EXPECT_TRUE(report["healthy"].is_null());
  EXPECT_THAT(report["blind_spot"].get<std::string>(), HasSubstr("who comes late can't be told"));
}

// At the end of data of uneven lengths, for instance.
TEST(CommHang, WhereMostHaveEndedAllWhoWaitMayHaveLaunchedTooMany) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3, 4});
  for (int rank = 0; rank < 5; ++rank) job.Collectives(world, rank, 9, rank == 1 || rank == 3 ? 10 : 9);
  Finding finding = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0, 2, 4));
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(1, 3));
  EXPECT_FALSE(finding.certain);
  job.Collectives(world, 4, 9, 10);
  finding = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0, 2));
  EXPECT_THAT(finding.ambiguous_with, IsEmpty());
  EXPECT_TRUE(finding.certain) << "less than half";
}

TEST(CommHang, SoMayTheyWhereHalfHaveEndedAllAndFewerWait) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3}), pair = job.AddGroup({1, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, 9, rank == 1 ? 10 : 9);
  job.Collectives(pair, 3, 4, 5);  // held up by rank 1
  job.Collectives(pair, 1, 4, 4);
  Finding finding = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0, 2));
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(1));
  EXPECT_FALSE(finding.certain);
  job.Collectives(world, 3, 9, 10);
  job.Collectives(pair, 3, 5, 5);
  job.Collectives(pair, 1, 5, 5);
  for (trace::CommOp& op : job.log().ops)
    if (op.communicator == pair) op.state = trace::OpState::kCompleted;
  finding = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0, 2));
  EXPECT_TRUE(finding.certain) << "as many wait";
}

TEST(CommHang, WhoDoesNotEndWhatOthersEndedIsNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(world, rank, rank == 1 ? 8 : 9, 10);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(1));
  EXPECT_TRUE(diagnosis.findings[0].certain);
}

TEST(CommHang, NothingIsCertainOfAJobThatMoved) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1});
  for (int rank = 0; rank < 2; ++rank) job.Collectives(world, rank, 9, 9 + rank);
  EXPECT_TRUE(job.Diagnose().findings.at(0).certain);
  job.log().moving = true;
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(0));
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_THAT(diagnosis.findings[0].probe, HasSubstr("second look"));
}

TEST(CommHang, OfAJobThatMovedWhatWasLaunchedMomentsAgoIsNoHang) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, 9 + rank % 2);
  EXPECT_EQ(DiagnosisReport(job.Diagnose(), job.log())["healthy"], false);
  job.log().moving = true;
  const Json report = DiagnosisReport(job.Diagnose(), job.log());
  EXPECT_EQ(report["healthy"], false);
  EXPECT_EQ(report["verdicts"].size(), 1U) << "it is told of, to be looked at again";
  // Unless what is under way was launched moments ago.
  for (trace::CommOp& op : job.log().ops)
    if (op.state != OpState::kCompleted) op.age_ns = 100'000'000;
  EXPECT_THAT(job.Diagnose().findings, IsEmpty());
}

TEST(CommHang, OfARankItTellsTheProcess) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, rank == 2 ? 9 : 10);
  job.log().processes = {{1, "GPU 1 of process 71 on a"}, {2, "GPU 2 of process 72 on b"}};
  const Finding known = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(known.suspects), ElementsAre(2));
  EXPECT_THAT(incident::Headline(known), HasSubstr("rank 2 has launched up to 9 (GPU 2 of process 72 on b)"));
  job.log().numbered_in = "communicator 0xa";
  const Json report = DiagnosisReport(job.Diagnose(), job.log());
  EXPECT_EQ(report["verdicts"][0]["suspects"][0]["rank"], "2 of communicator 0xa, GPU 2 of process 72 on b");
}

// Several of one number on a rank are launched together.
TEST(CommHang, ABatchWhoseEndIsNotToldIsNoMismatch) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) {
    job.Add(world, rank, 1, "all_reduce", OpState::kScheduled);
    job.Add(world, rank, 1, "_all_gather_base", OpState::kScheduled);
  }
  EXPECT_EQ(job.Diagnose().findings.at(0).syndrome, Syndrome::kCommunicationHang);
  job.Add(world, 0, 2, "all_reduce", OpState::kScheduled);
  job.Add(world, 1, 2, "broadcast", OpState::kScheduled);
  EXPECT_EQ(job.Diagnose().findings.at(0).syndrome, Syndrome::kMismatched);
}

// What failed was under way for as long as its time was, and is over.
TEST(CommHang, AFailedOpDoesNotMakeWhatJustBeganAHang) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, rank == 0 ? 9 : 10);
  for (trace::CommOp& op : job.log().ops)
    if (op.sequence == 10) op.state = OpState::kStarted, op.age_ns = 1'000'000;
  trace::CommOp& failed = job.log().ops.back();
  failed.age_ns = failed.duration_ns = 60'000'000'000;
  EXPECT_THAT(job.Diagnose().findings, IsEmpty());
  for (trace::CommOp& op : job.log().ops)
    if (op.sequence == 10) op.age_ns = op.duration_ns = 60'000'000'000;
  EXPECT_THAT(Named(job.Diagnose()), ElementsAre(0)) << "nothing else is under way";
}

// Rank 0 evaluates, or hangs: its trail does not say which.
TEST(CommHang, WhoMayComeIsNamedAndNotCertain) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, rank == 0 ? 9 : 10);
  job.log().at_rest.emplace();
  Finding finding = job.Diagnose().findings.at(0);
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0));
  EXPECT_FALSE(finding.certain);
  EXPECT_THAT(finding.probe, HasSubstr("stacks of rank 0"));
  job.log().at_rest->emplace(1, "its process is stopped (state T)");
  EXPECT_FALSE(job.Diagnose().findings.at(0).certain) << "another one is";
  job.log().at_rest->emplace(0, "its process is stopped (state T)");
  finding = job.Diagnose().findings.at(0);
  EXPECT_TRUE(finding.certain);
  EXPECT_EQ(finding.evidence.back(), "rank 0: its process is stopped (state T)");
}

// An evaluation of 12 s at each 200th step of 20 ms.
TEST(CommHang, WhatHasEndedSoLateTwiceMayEndAgain) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 599, rank == 0 ? 599 : 600);
  job.log().at_rest.emplace();
  const auto at = [&](int evaluations, int64_t waited_ns) {
    Job now = job;
    for (int64_t step = 1; step < 599; ++step)
      for (int rank = 0; rank < 3; ++rank) {
        now.Add(world, rank, step, "all_reduce", OpState::kCompleted);
        trace::CommOp& op = now.log().ops.back();
        const bool is_long = step % 200 == 0 && step / 200 <= evaluations && rank != 0;
        op.created_ns = step * 20'000'000 + step / 200 * 12'000'000'000 - (is_long ? 12'000'000'000 : 0);
        op.duration_ns = is_long ? 12'000'000'000 : 1'000'000;
      }
    for (trace::CommOp& op : now.log().ops)
      if (op.state != OpState::kCompleted) op.age_ns = waited_ns;
    return now;
  };
  EXPECT_THAT(Named(at(0, 8'000'000'000).Diagnose()), ElementsAre(0));
  EXPECT_THAT(Named(at(1, 8'000'000'000).Diagnose()), ElementsAre(0)) << "the first step may take as long";
  EXPECT_THAT(Named(at(2, 8'000'000'000).Diagnose()), IsEmpty());
  EXPECT_THAT(Named(at(2, 17'000'000'000).Diagnose()), IsEmpty());
  EXPECT_THAT(Named(at(2, 19'000'000'000).Diagnose()), ElementsAre(0));
  Job stopped = at(2, 8'000'000'000);
  stopped.log().at_rest->emplace(0, "its process is stopped (state T)");
  EXPECT_TRUE(stopped.Diagnose().findings.at(0).certain) << "time is not all that tells";

  const auto report = [](Job now) { return DiagnosisReport(now.Diagnose(), now.log()); };
  for (const int64_t waited_ns : {8'000'000'000, 17'000'000'000}) {
    const Json told = report(at(2, waited_ns));
    EXPECT_TRUE(told["healthy"].is_null()) << told;
    EXPECT_THAT(told["blind_spot"].get<std::string>(),
                AllOf(HasSubstr("rank 0: ranks 1, 2 wait in all_reduce 600"), HasSubstr("waits of 12 s"),
                      HasSubstr("can't be told of less than 18 s")));
  }
  EXPECT_THAT(report(at(2, 4'000'000'000)).dump(), Not(HasSubstr("wait in"))) << "a running job always waits";
}

// In each of its steps all wait for 12 s, and once for longer.
TEST(CommHang, WhatIsBeyondTheUsualIsNotKnownToBeWell) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 200, rank == 0 ? 200 : 201);
  job.log().at_rest.emplace();
  for (int64_t step = 1; step < 200; ++step)
    for (int rank = 0; rank < 3; ++rank) {
      job.Add(world, rank, step, "all_reduce", OpState::kCompleted);
      trace::CommOp& op = job.log().ops.back();
      op.duration_ns = rank != 0 ? 12'000'000'000 : 1'000'000;
      op.created_ns = step * 20'000'000'000 - op.duration_ns;
    }
  const auto report = [&](int64_t waited_ns) {
    for (trace::CommOp& op : job.log().ops)
      if (op.state != OpState::kCompleted) op.age_ns = waited_ns;
    return DiagnosisReport(job.Diagnose(), job.log());
  };
  EXPECT_EQ(report(11'000'000'000)["healthy"], true);
  EXPECT_TRUE(report(50'000'000'000)["healthy"].is_null());
  EXPECT_THAT(report(50'000'000'000)["blind_spot"].get<std::string>(), HasSubstr("can't be told of less than 96 s"));
  EXPECT_EQ(report(97'000'000'000)["healthy"], false);
}

// Rank 1 sleeps, and the others wait for it in what no collector sees.
TEST(CommHang, AJobInWhichNothingMovesIsNotHealthy) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  const auto quiet = [&](double seconds, int64_t step_ns) {
    Job now = job;
    for (int64_t step = 1; step <= 600; ++step)
      for (int rank = 0; rank < 3; ++rank) {
        now.Add(world, rank, step, "all_reduce", OpState::kCompleted);
        now.log().ops.back().created_ns = step * step_ns;
        now.log().ops.back().duration_ns = 1'000'000;
        now.log().ops.back().alone_ns = step_ns - 1'000'000;
        now.log().quiet_ns[rank] = static_cast<int64_t>(seconds * 1e9) + (rank == 1 ? 500'000'000 : 0);
      }
    return DiagnosisReport(now.Diagnose(), now.log());
  };
  EXPECT_EQ(quiet(4, 50'000'000)["healthy"], true);
  const Json report = quiet(55, 50'000'000);
  EXPECT_TRUE(report["healthy"].is_null()) << report;
  EXPECT_THAT(report["blind_spot"].get<std::string>(),
              AllOf(HasSubstr("no rank has launched or ended anything for 55.0 s"),
                    HasSubstr("rank 1 has been quiet for longest, 55.5 s")));
  EXPECT_EQ(quiet(25, 20'000'000'000)["healthy"], true) << "its steps take 20 s";
  EXPECT_TRUE(quiet(61, 20'000'000'000)["healthy"].is_null());
  EXPECT_EQ(report["verdicts"].size(), 0u);
}

TEST(CommHang, NothingIsCertainWhereOpsAreNotSeenToEnd) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1});
  for (int rank = 0; rank < 2; ++rank) job.Collectives(world, rank, 9, 9 + rank);
  job.log().unseen = true;
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_FALSE(diagnosis.findings.at(0).certain);
  EXPECT_THAT(diagnosis.findings[0].probe, HasSubstr("stacks"));
}

TEST(CommHang, NothingIsCertainWhereRanksMayWaitInWhatTheLogHasNot) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1});
  for (int rank = 0; rank < 2; ++rank) job.Collectives(world, rank, 9, 9 + rank);
  EXPECT_TRUE(job.Diagnose().findings.at(0).certain);
  job.log().doubt = "how long it waits in another library";
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_FALSE(diagnosis.findings.at(0).certain);
  EXPECT_EQ(diagnosis.findings[0].probe, job.log().doubt);
}

TEST(CommHang, OneNeverCameAndAnotherNeverLeft) {
  Job job;
  const uint32_t a = job.AddGroup({0, 1, 2, 3}), b = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) job.Collectives(a, rank, rank == 1 ? 8 : 9, 10);
  for (int rank = 0; rank < 4; ++rank) job.Collectives(b, rank, 4, 4);
  job.log().ops.erase(std::remove_if(job.log().ops.begin(), job.log().ops.end(),
                                     [&](const trace::CommOp& op) { return op.rank == 3 && op.sequence == 10; }),
                      job.log().ops.end());
  for (trace::CommCount& count : job.log().counts)
    if (count.rank == 3 && count.communicator == a) count.enqueued = 9;
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_THAT(Named(diagnosis), ElementsAre(1, 3));
  for (const Finding& finding : diagnosis.findings) EXPECT_TRUE(finding.certain);
}

TEST(CommHang, ARootThatHasEndedItsBroadcastProvesNothing) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1});
  job.Collectives(world, 0, 10, 10, "broadcast");
  job.Collectives(world, 1, 9, 10, "broadcast");
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_FALSE(diagnosis.findings[0].certain);
}

// Tensor-parallel pairs, data-parallel pairs: rank 3 is stuck on the host, 2 waits for it, 0 for 2, 1 for 0.
TEST(CommHang, WalksAcrossCommunicators) {
  Job job;
  const uint32_t a = job.AddGroup({0, 1}), b = job.AddGroup({2, 3}), c = job.AddGroup({0, 2}), d = job.AddGroup({1, 3});
  job.Collectives(a, 0, 5, 5);
  job.Collectives(a, 1, 5, 6);
  job.Collectives(b, 2, 5, 6);
  job.Collectives(b, 3, 5, 5);
  job.Collectives(c, 0, 2, 3);
  job.Collectives(c, 2, 2, 2);
  job.Collectives(d, 1, 2, 2);
  job.Collectives(d, 3, 2, 2);
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(3));
  EXPECT_TRUE(diagnosis.findings[0].certain);
}

TEST(CommHang, AllInOneOpAndNoneOutOfIt) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, 10);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(0, 1, 2));
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_FALSE(diagnosis.findings[0].probe.empty());
}

TEST(CommHang, ACircleIsSoftware) {
  Job job;
  const uint32_t a = job.AddGroup({0, 1}), b = job.AddGroup({0, 1});
  job.Collectives(a, 0, 4, 5);
  job.Collectives(b, 1, 7, 8);
  job.Collectives(a, 1, 4, 5);
  job.Collectives(b, 0, 7, 8);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_EQ(diagnosis.findings[0].suspects[0].kind, incident::Suspect::Kind::kSoftware);
  EXPECT_EQ(diagnosis.findings[0].evidence.size(), 2U);
  EXPECT_TRUE(diagnosis.findings[0].certain);
}

TEST(CommHang, ACircleOfThreeWithOneThatWaitsForIt) {
  Job job;
  const uint32_t a = job.AddGroup({0, 1}), b = job.AddGroup({1, 2}), c = job.AddGroup({2, 0}), d = job.AddGroup({3, 0});
  job.Collectives(a, 0, 1, 2);
  job.Collectives(b, 1, 1, 2);
  job.Collectives(c, 2, 1, 2);
  job.Collectives(d, 3, 1, 2);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_EQ(diagnosis.findings[0].evidence.size(), 3U) << "rank 3 is not in the circle";
}

TEST(CommHang, AnotherCollectiveOrSizeIsAMismatch) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 9, 10, rank == 1 ? "broadcast" : "all_reduce");
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kMismatched);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(1));
  EXPECT_TRUE(diagnosis.findings[0].certain);

  Job pair;
  const uint32_t both = pair.AddGroup({0, 1});
  for (int rank = 0; rank < 2; ++rank) pair.Collectives(both, rank, 9, 10);
  pair.Shape("[9] Float");
  diagnosis = pair.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].suspects.size() + diagnosis.findings[0].ambiguous_with.size(), 2U);
  EXPECT_FALSE(diagnosis.findings[0].certain) << "one against one";
}

// Ranks 0 and 1 have launched all of their batch, rank 2 a part.
TEST(CommHang, APartOfABatchIsNoMismatch) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank)
    job.Collectives(world, rank, 9, 10, rank == 2 ? "_all_gather_base" : "coalesced");
  for (const Finding& finding : job.Diagnose().findings) EXPECT_NE(finding.syndrome, Syndrome::kMismatched);
}

// Its counters are written by a watchdog, now and then; its entry says more.
TEST(CommHang, ACounterThatLagsBehindDoesNotUndoAnEnd) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 1, 2);
  for (trace::CommOp& op : job.log().ops)
    if (op.rank == 0) op.state = OpState::kCompleted;
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(1, 2));
}

// Layouts of tensor, pipeline and data parallel groups; one rank stops, the others go on as far as they can.
class Layouts : public testing::TestWithParam<int> {};

TEST_P(Layouts, TheRankThatStoppedIsNamedWhateverTheOrderOfTheRecords) {
  std::mt19937 chance(static_cast<unsigned>(GetParam()));
  const auto below = [&](int limit) { return static_cast<int>(chance() % static_cast<unsigned>(limit)); };
  const int tp = 1 + below(4), dp = tp == 1 ? 2 + below(3) : 1 + below(4), world = tp * dp;
  Job job;
  std::vector<std::vector<std::pair<uint32_t, std::vector<int>>>> groups_of(
      static_cast<size_t>(world));  // in the order of a step
  const auto add = [&](const std::vector<int>& ranks) {
    if (ranks.size() < 2) return;
    const uint32_t group = job.AddGroup(ranks);
    for (const int rank : ranks) groups_of[static_cast<size_t>(rank)].emplace_back(group, ranks);
  };
  for (int d = 0; d < dp; ++d) {
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(tp));
    for (int t = 0; t < tp; ++t) ranks.push_back(d * tp + t);
    add(ranks);
  }
  for (int t = 0; t < tp; ++t) {
    std::vector<int> ranks;
    ranks.reserve(static_cast<size_t>(dp));
    for (int d = 0; d < dp; ++d) ranks.push_back(d * tp + t);
    add(ranks);
  }
  // Every rank launches, in each step, one collective on each of its groups, and waits for each to end; the culprit
  // stops before one of them. Carried out until nothing moves.
  const int culprit = below(world), stops_at = 1 + below(12);
  std::vector<int> done(static_cast<size_t>(world)),
      launched(static_cast<size_t>(world));  // collectives, over all groups
  std::map<std::pair<uint32_t, int>, int64_t> ended;
  for (bool moves = true; moves;) {
    moves = false;
    for (int rank = 0; rank < world; ++rank) {
      int& at = launched[static_cast<size_t>(rank)];
      if (at == done[static_cast<size_t>(rank)] && !(rank == culprit && at == stops_at)) ++at, moves = true;
    }
    for (int rank = 0; rank < world; ++rank) {
      const auto& groups = groups_of[static_cast<size_t>(rank)];
      int& at = done[static_cast<size_t>(rank)];
      if (at == launched[static_cast<size_t>(rank)]) continue;
      const auto& [group, members] = groups[static_cast<size_t>(at) % groups.size()];
      const int64_t number = ended[{group, rank}] + 1;
      const bool all = std::all_of(members.begin(), members.end(), [&, wanted = group](int member) {
        const auto& theirs = groups_of[static_cast<size_t>(member)];
        int64_t count = 0;
        for (int i = 0; i < launched[static_cast<size_t>(member)]; ++i)
          if (theirs[static_cast<size_t>(i) % theirs.size()].first == wanted) ++count;
        return count >= number;
      });
      if (all) ++at, ++ended[{group, rank}], moves = true;
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    job.Report(rank);
    const auto& groups = groups_of[static_cast<size_t>(rank)];
    std::map<uint32_t, int64_t> number;
    for (int i = 0; i < launched[static_cast<size_t>(rank)]; ++i) {
      const uint32_t group = groups[static_cast<size_t>(i) % groups.size()].first;
      job.Add(group, rank, ++number[group], "all_reduce",
              i < done[static_cast<size_t>(rank)] ? OpState::kCompleted : OpState::kScheduled);
    }
    for (const auto& [group, members] : groups)
      job.log().counts.push_back({group, rank, number[group], ended[{group, rank}]});
  }
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(culprit));
  EXPECT_TRUE(diagnosis.findings[0].certain);
  std::shuffle(job.log().ops.begin(), job.log().ops.end(), chance);
  std::shuffle(job.log().counts.begin(), job.log().counts.end(), chance);
  job.log().ops.insert(job.log().ops.end(), job.log().ops.begin(),
                       job.log().ops.begin() + 5 % static_cast<int>(job.log().ops.size()));
  const CommDiagnosis again = job.Diagnose();
  ASSERT_EQ(again.findings.size(), diagnosis.findings.size());
  EXPECT_EQ(again.findings[0].evidence, diagnosis.findings[0].evidence);
}
INSTANTIATE_TEST_SUITE_P(Seeds, Layouts, testing::Range(0, 100));

// Of 16,384 ranks in ten communicators each one stops, or half of them.
TEST(CommHang, ManyRanks) {
  constexpr int kRanks = 16'384, kGroup = 128;
  for (const bool half : {false, true}) {
    Job job;
    std::vector<int> all(kRanks);
    std::iota(all.begin(), all.end(), 0);
    const uint32_t world = job.AddGroup(all);
    for (int first = 0; first < kRanks; first += kGroup)
      for (int i = 0; i < 9; ++i) {
        const uint32_t group = job.AddGroup({all.begin() + first, all.begin() + first + kGroup});
        for (int rank = first; rank < first + kGroup; ++rank) job.log().counts.push_back({group, rank, 20, 20});
      }
    std::vector<int> culprits;
    for (int rank = 0; rank < kRanks; ++rank) {
      const bool stops = half ? rank % 2 == 1 : rank == 4711;
      job.Collectives(world, rank, 9, stops ? 9 : 10);
      if (stops) culprits.push_back(rank);
    }
    const CommDiagnosis diagnosis = job.Diagnose();
    EXPECT_EQ(Named(diagnosis), culprits);
    EXPECT_TRUE(diagnosis.findings.at(0).certain);
  }
}

// Real dumps of jobs of 16 ranks with planted faults, as Flight Recorder wrote them.
TEST(CommHang, RealDumpsNameEveryCulpritAndNoOther) {
  const std::filesystem::path data = std::filesystem::path(LOCKSTEP_DATA) / "diagnosis/fr_dumps_nvrx";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << data << " is not there";
  for (const auto& folder : std::filesystem::directory_iterator(data)) {
    const auto log = trace::ReadFlightRecorder({folder.path().string()});
    ASSERT_TRUE(log.ok()) << log.status();
    std::ifstream gold(folder.path() / "fault_injection.log");
    std::vector<int> culprits;
    const std::regex line("Rank ([0-9]+), fault_type.*");
    std::smatch match;
    for (std::string text; std::getline(gold, text);)
      if (std::regex_match(text, match, line)) culprits.push_back(std::stoi(match[1]));
    const CommDiagnosis diagnosis = DiagnoseCommunication(*log);
    EXPECT_EQ(Named(diagnosis), culprits) << folder.path();
    for (const Finding& finding : diagnosis.findings)
      EXPECT_TRUE(finding.certain) << folder.path() << " " << finding.probe;
  }
}

}  // namespace
}  // namespace lockstep::detect
