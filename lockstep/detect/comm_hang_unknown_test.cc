// Jobs that hang, of which not all ranks or members are known.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_test_job.h"
#include "lockstep/detect/diagnosis.h"

namespace lockstep::detect {
namespace {

using incident::Syndrome;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::Direction;

// Ranks of a pipeline and those beside them: of the stage between, two trails are lost.
TEST(CommHang, WhoWaitsForARankThatIsNotKnownIsNotNamed) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3, 4, 5}), pipe = job.AddGroup({1, 5}), beside = job.AddGroup({0, 1});
  job.log().communicators[pipe].size = 3;
  for (const int rank : {0, 1, 4, 5}) job.Collectives(world, rank, 7, 7);
  job.Transfer(pipe, 1, Direction::kReceive, -1);
  job.Collectives(beside, 0, 4, 5);
  job.Collectives(beside, 1, 4, 4);
  CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(diagnosis.no_report, ElementsAre(2, 3));
  EXPECT_THAT(Named(diagnosis), ElementsAre(2, 3));
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_THAT(diagnosis.findings[0].evidence, ElementsAre(HasSubstr("rank 1 waits in a transfer (recv) with a rank")));

  // Another that others wait for explains it as well.
  const uint32_t other = job.AddGroup({4, 5});
  job.Collectives(other, 4, 1, 1);
  job.Collectives(other, 5, 1, 2);
  diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(4));
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(2, 3));

  // Of one that is lost everybody knows who it is.
  job.Report(3);
  diagnosis = job.Diagnose();
  EXPECT_THAT(diagnosis.findings.at(0).evidence, testing::Not(testing::Contains(HasSubstr("not known"))));
}

TEST(CommHang, WhereNobodyKnowsForWhomTheyWaitNobodyIsNamed) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1});
  for (int rank = 0; rank < 2; ++rank) job.Transfer(pipe, rank, Direction::kReceive, -1);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kStalled);
  EXPECT_THAT(diagnosis.findings[0].suspects, IsEmpty());
  EXPECT_FALSE(diagnosis.findings[0].certain);
}

TEST(CommHang, MembersThatAreNotKnownMayBeThoseWaitedFor) {
  Job job;
  job.AddGroup({0, 1, 2, 3, 4});
  const uint32_t group = job.AddGroup({0, 1, 2});
  for (const int rank : {0, 1, 2, 4}) job.Report(rank);
  for (int rank = 0; rank < 3; ++rank) job.Collectives(group, rank, 1, 2);
  job.log().communicators[group].size = 4;
  CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(3)) << "the only one that told nothing";
  EXPECT_FALSE(diagnosis.findings.at(0).certain);
  job.log().communicators[group].size = 5;
  diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(3));
  EXPECT_THAT(diagnosis.findings.at(0).evidence, ElementsAre(HasSubstr("of which not all members are known")));
}

TEST(CommHang, OfManyThatToldNothingTheLineOfThoseWhoWaitComesFirst) {
  Job job;
  std::vector<int> all(60);
  std::iota(all.begin(), all.end(), 0);
  job.AddGroup(all);
  const uint32_t group = job.AddGroup(std::vector<int>(all.begin(), all.begin() + 30));
  for (int rank = 0; rank < 40; ++rank) job.Report(rank);
  for (int rank = 0; rank < 30; ++rank) job.Collectives(group, rank, 1, 2);
  job.log().communicators[group].size = 45;
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_EQ(Named(diagnosis), std::vector<int>(all.begin() + 40, all.end()));
  EXPECT_THAT(diagnosis.findings.at(0).evidence, ElementsAre(HasSubstr("of which not all members are known")));
}

TEST(CommHang, WhatSomeHaveEndedAllMembersHaveLaunched) {
  Job job;
  const uint32_t group = job.AddGroup({0, 1, 2});
  job.log().communicators[group].size = 4;
  for (int rank = 0; rank < 3; ++rank) job.Collectives(group, rank, rank == 1 ? 9 : 10, 10);
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(1));
  EXPECT_THAT(diagnosis.findings.at(0).evidence, ElementsAre(HasSubstr("2 of 4 members have ended")));
}

TEST(CommHang, WhoIsInAnOpByItsCountersAloneHasCome) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) job.Collectives(world, rank, 0, 1);
  std::erase_if(job.log().ops, [](const trace::CommOp& op) { return op.rank == 2; });
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(0, 1, 2));
  EXPECT_FALSE(diagnosis.findings[0].certain);
}

TEST(CommHang, WhoTellsNothingIsNoCulpritUnlessNobodyElseIs) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (const int rank : {0, 1, 3}) job.Collectives(world, rank, 9, rank == 3 ? 9 : 10);
  CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(diagnosis.no_report, ElementsAre(2));
  EXPECT_THAT(Named(diagnosis), ElementsAre(3));
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(2));
  EXPECT_FALSE(diagnosis.findings[0].certain);

  Job other;
  other.AddGroup({0, 1, 2, 3});
  for (const int rank : {0, 1, 3}) other.Collectives(0, rank, 9, 10);
  diagnosis = other.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(2));
  EXPECT_FALSE(diagnosis.findings[0].certain);
}

// Of the ranks that wait for one that told nothing, and of those that do not, each have their own cause.
TEST(CommHang, WhoTellsNothingHidesNoLostMessageAndNoCircleElsewhere) {
  Job job;
  const uint32_t whole = job.AddGroup({0, 1}), half = job.AddGroup({2, 3});
  for (const int rank : {0, 1}) job.Collectives(whole, rank, 9, 10);
  job.Collectives(half, 2, 9, 10);
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(0, 1));
  EXPECT_EQ(diagnosis.findings[1].syndrome, Syndrome::kNonCommunicationHang);
  EXPECT_THAT(RanksOf(diagnosis.findings[1].suspects), ElementsAre(3));

  Job other;
  const uint32_t first = other.AddGroup({0, 1}), second = other.AddGroup({0, 1});
  const uint32_t pair = other.AddGroup({2, 3});
  other.Collectives(first, 0, 9, 10);
  other.Collectives(second, 1, 9, 10);
  other.Collectives(pair, 2, 9, 10);
  diagnosis = other.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_THAT(RanksOf(diagnosis.findings[1].suspects), ElementsAre(3));
}

// Nobody knows whether the one that is missing is in what others wait in.
TEST(CommHang, WhoIsInTheOpWithOneThatToldNothingIsAsGood) {
  Job job;
  const uint32_t row = job.AddGroup({0, 1, 2}), pipe = job.AddGroup({2, 3}), rest = job.AddGroup({0, 4, 2}),
                 later = job.AddGroup({3, 4});
  for (const int rank : {0, 1}) job.Collectives(row, rank, 4, 5);
  job.Transfer(pipe, 3, Direction::kSend, 2);
  job.Collectives(rest, 4, 1, 2);
  job.Collectives(later, 3, 1, 2);
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_THAT(Named(diagnosis), ElementsAre(2));
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(0, 1)) << "rank 0 is not in what 4 waits in";
  job.log().remarks[2] = "is gone";
  EXPECT_THAT(job.Diagnose().findings.at(0).ambiguous_with, IsEmpty());
  job.log().remarks.clear();
  for (trace::CommOp& op : job.log().ops) op.awaits_device = op.rank == 1;
  EXPECT_THAT(RanksOf(job.Diagnose().findings.at(0).ambiguous_with), ElementsAre(1)) << "the device of 0 has come";
}

// Its device may not even have come to the send.
TEST(CommHang, WhoSendsToOneThatToldNothingIsAsGood) {
  Job job;
  const uint32_t pipe = job.AddGroup({0, 1}), pair = job.AddGroup({1, 2}), other = job.AddGroup({0, 3});
  job.Transfer(pipe, 1, Direction::kSend, 0);
  for (const int rank : {1, 2}) job.Collectives(pair, rank, 1, 2);
  job.Collectives(other, 3, 1, 2);
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_THAT(Named(diagnosis), ElementsAre(0));
  EXPECT_THAT(RanksOf(diagnosis.findings[0].ambiguous_with), ElementsAre(1, 3));
}

TEST(CommHang, WhereWhoIsInAGroupIsDoubtfulOnlyThatIsNotCertain) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3}), group = job.AddGroup({0, 1, 2});
  for (int rank = 0; rank < 3; ++rank) {
    job.Collectives(world, rank, 4, 5);
    job.Collectives(group, rank, 0, 1, rank == 1 ? "broadcast" : "all_reduce");
  }
  job.Collectives(world, 3, 4, 4);
  EXPECT_EQ(job.Diagnose().findings.size(), 1U) << "what they wait for may follow from the mismatch";
  job.log().communicators[group].doubt = "which ranks are in it";
  CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(3));
  EXPECT_TRUE(diagnosis.findings[0].certain);
  EXPECT_EQ(diagnosis.findings[1].syndrome, Syndrome::kMismatched);
  EXPECT_FALSE(diagnosis.findings[1].certain);
  EXPECT_EQ(diagnosis.findings[1].probe, "which ranks are in it");
  job.log().communicators[world].doubt = "who is in the world";
  diagnosis = job.Diagnose();
  for (const incident::Finding& finding : diagnosis.findings) EXPECT_FALSE(finding.certain);
  EXPECT_EQ(diagnosis.findings.back().probe, "who is in the world");
}

// It makes no communicator: perhaps it never comes to where the others wait for it.
// Rank 0 is in an op that rank 1 has ended, if they are of one group; and surely others wait for it.
TEST(CommHang, WhereWhoIsInAGroupIsDoubtfulWhoIsInItsOpMayWait) {
  Job job;
  const uint32_t group = job.AddGroup({0, 1}), world = job.AddGroup({0, 1, 2});
  job.Collectives(group, 0, 4, 5);
  job.Collectives(group, 1, 5, 5);
  job.Collectives(world, 0, 1, 1);
  for (const int rank : {1, 2}) job.Collectives(world, rank, 1, 2);
  EXPECT_TRUE(job.Diagnose().findings.at(0).certain);
  job.log().communicators[group].doubt = "which ranks are in it";
  const CommDiagnosis diagnosis = job.Diagnose();
  EXPECT_THAT(Named(diagnosis), ElementsAre(0));
  EXPECT_FALSE(diagnosis.findings.at(0).certain);
  EXPECT_EQ(diagnosis.findings.at(0).probe, "which ranks are in it");
}

// Of dumps without groups: two processes could tell nothing, and the third of those beside waits elsewhere.
TEST(CommHang, WhoMayBeInAGroupThatNobodyToldIsAsGoodAsTheWayBetweenTheOthers) {
  for (const bool awaited : {false, true}) {
    Job job;
    const uint32_t group = job.AddGroup({0, 1, 2}), other = job.AddGroup({3, 6});
    for (int rank = 0; rank < 3; ++rank) job.Collectives(group, rank, 4, 5);
    if (awaited) job.log().ops.back().awaits_device = true;
    job.Collectives(other, 3, 1, 2);
    job.Collectives(other, 6, 1, 2);
    for (const int rank : {4, 5}) job.Report(rank);
    EXPECT_THAT(job.Diagnose().findings.at(0).ambiguous_with, IsEmpty());
    job.log().communicators[group].perhaps = {3, 4, 5};
    const incident::Finding finding = job.Diagnose().findings.at(0);
    EXPECT_EQ(RanksOf(finding.suspects), awaited ? std::vector{2} : (std::vector{0, 1, 2}));
    EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(4, 5));
    EXPECT_THAT(finding.evidence, Contains(HasSubstr("ranks 4, 5 told nothing of it, and may be in it")));
    EXPECT_THAT(finding.probe, HasSubstr("ranks 4, 5"));
    EXPECT_FALSE(finding.certain);
  }
}

TEST(CommHang, WhereWhoIsInAGroupIsDoubtfulACircleIsNotCertain) {
  Job job;
  const uint32_t a = job.AddGroup({0, 1}), b = job.AddGroup({0, 1});
  job.Collectives(a, 0, 4, 5);
  job.Collectives(b, 1, 7, 8);
  job.Collectives(a, 1, 4, 4);
  job.Collectives(b, 0, 7, 7);
  EXPECT_TRUE(job.Diagnose().findings.at(0).certain);
  job.log().communicators[b].doubt = "which ranks are in it";
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_EQ(diagnosis.findings[0].probe, "which ranks are in it");
}

// Rank 2 leaves one out of the last round, and rank 4, of which nothing is told, is the only one that waits for nobody.
TEST(CommHang, WhoLaunchedFewerIsAsGoodAsOneThatToldNothing) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3, 4}, "world"), left = job.AddGroup({0, 1}, "pair"),
                 right = job.AddGroup({2, 3}, "pair");
  for (int round = 1; round <= 4; ++round)
    for (int rank = 0; rank < 4; ++rank) {
      const uint32_t pair = rank < 2 ? left : right;
      const int pairs = round < 4 ? 2 : rank == 2 ? 1 : 2;
      for (int i = 0; i < pairs; ++i) job.Launch(pair, rank, "all_reduce", round < 4 || i == 0 || rank < 2);
      if (round < 4 || rank != 3) job.Launch(world, rank, "all_reduce", round < 4);
    }
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 2U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock) << "2 and 3 wait for each other, too";
  EXPECT_FALSE(diagnosis.findings[0].certain);
  EXPECT_THAT(RanksOf(diagnosis.findings[1].suspects), ElementsAre(4));
  EXPECT_THAT(RanksOf(diagnosis.findings[1].ambiguous_with), ElementsAre(2));
  for (const incident::Finding& finding : diagnosis.findings)
    EXPECT_THAT(finding.evidence, Contains(HasSubstr("1 all_reduce of pair (2) fewer than ranks 0, 1")));
}

TEST(CommHang, ARankOfTheJobThatToldNothingHasNotReported) {
  Job job;
  job.log().world = {0, 1, 2};
  const uint32_t pair = job.AddGroup({0, 2});
  for (const int rank : {0, 2}) job.Collectives(pair, rank, 9, 9);
  EXPECT_THAT(job.Diagnose().no_report, ElementsAre(1));
}

TEST(CommHang, WhereNobodyToldOfACommunicationNobodyKnowsThatAllIsWell) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1});
  for (const int rank : {0, 1}) {
    job.Report(rank);
    job.log().counts.push_back({world, rank, 0, 0});
  }
  Json report = DiagnosisReport(job.Diagnose(), job.log());
  EXPECT_TRUE(report["healthy"].is_null());
  EXPECT_THAT(report["blind_spot"].get<std::string>(), HasSubstr("no rank has told of a collective"));
  job.Collectives(world, 0, 1, 1);
  job.Collectives(world, 1, 1, 1);
  report = DiagnosisReport(job.Diagnose(), job.log());
  EXPECT_EQ(report["healthy"], true);
}

}  // namespace
}  // namespace lockstep::detect
