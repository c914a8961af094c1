#include "lockstep/detect/comm_mismatches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "lockstep/detect/comm_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::SizeIs;

// Groups of as many ranks that sum twenty times; then all come to the norm; then the groups gather.
class Groups {
 public:
  Groups(int ranks, int size) : ranks_(ranks), size_(size) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank % size == 0) groups_.emplace_back();
      groups_.back().push_back(rank);
      all.push_back(rank);
    }
    for (const std::vector<int>& group : groups_) job_.AddGroup(group, "TP");
    world_ = job_.AddGroup(all, "world");
    for (int step = 0; step < 2; ++step)
      for (int rank = 0; rank < ranks; ++rank) Step(rank, true);
  }
  void Sum(int rank, int count, bool ended) {
    for (int i = 0; i < count; ++i) Launch(rank, "all_reduce", ended);
  }
  void Norm(int rank, bool ended) { job_.Launch(world_, rank, "all_reduce", ended); }
  void Launch(int rank, const char* name, bool ended) {
    job_.Launch(static_cast<uint32_t>(rank / size_), rank, name, ended);
  }
  void Step(int rank, bool ended) {
    Sum(rank, 20, ended);
    Norm(rank, ended);
    Launch(rank, "all_gather", ended);
  }
  // The groups that are not the first one come to the norm.
  void OthersStep() {
    for (int rank = size_; rank < ranks_; ++rank) {
      Sum(rank, 20, true);
      Norm(rank, false);
    }
  }
  Job& job() { return job_; }
  // A mismatch of the first group alone.
  Finding Found() {
    const CommDiagnosis diagnosis = job_.Diagnose();
    EXPECT_THAT(diagnosis.findings, SizeIs(1));
    if (diagnosis.findings.empty()) return {};
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kMismatched);
    EXPECT_FALSE(diagnosis.findings[0].certain);
    return diagnosis.findings[0];
  }

 private:
  const int ranks_, size_;
  Job job_;
  std::vector<std::vector<int>> groups_;
  uint32_t world_ = 0;
};

// Either side may be wrong.
void ExpectAllOf(const Finding& finding, std::vector<int> ranks) {
  std::vector<int> named = RanksOf(finding.suspects);
  EXPECT_LT(named.size(), ranks.size());
  for (const int rank : RanksOf(finding.ambiguous_with)) named.push_back(rank);
  std::sort(named.begin(), named.end());
  EXPECT_EQ(named, ranks);
}

TEST(CommMismatches, OtherSizesAreOneWhereAllTellTheirs) {
  Job job;
  const uint32_t world = job.AddGroup({0, 1, 2, 3});
  for (int rank = 0; rank < 4; ++rank) {
    job.Launch(world, rank, "all_reduce", false);
    job.Shape(rank == 2 ? "of 4000 bytes" : "of 1000000 bytes");
  }
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_THAT(diagnosis.findings, SizeIs(1));
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kMismatched);
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(2));
  EXPECT_THAT(diagnosis.findings[0].evidence, Contains(HasSubstr("all_reduce of 4000 bytes on rank 2")));
  job.log().ops.back().shape = 0;
  for (const Finding& finding : job.Diagnose().findings) EXPECT_NE(finding.syndrome, Syndrome::kMismatched);
}

TEST(CommMismatches, WhoLeftOneOutRightThereIsNamedAndTheOtherIsAsGood) {
  for (const int ranks : {2, 8}) {
    Groups groups(ranks, 2);
    groups.Sum(0, 19, true);
    groups.Norm(0, false);
    groups.Launch(0, "all_gather", false);
    groups.Sum(1, 19, true);
    groups.Sum(1, 1, false);
    groups.OthersStep();
    const Finding finding = groups.Found();
    EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0)) << ranks;
    EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(1)) << ranks;
    EXPECT_THAT(finding.evidence.at(0), HasSubstr("and 3 1 all_reduce of TP (0) fewer than"));
  }
}

TEST(CommMismatches, ByMostOfTheirKindWhoLaunchedAnotherIsNamed) {
  Groups groups(8, 2);
  groups.Sum(0, 19, true);
  groups.Launch(0, "all_gather", false);
  groups.Sum(1, 19, true);
  groups.Sum(1, 1, false);
  groups.OthersStep();
  const Finding finding = groups.Found();
  EXPECT_THAT(RanksOf(finding.suspects), ElementsAre(0));
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(1));
  EXPECT_THAT(finding.evidence.at(0),
              HasSubstr("rank 0 launched after all_reduce 61 of TP (0), up to 62, 1 all_reduce of TP (0) fewer, 1 "
                        "all_gather of TP (0) more than ranks 1, 2, 3, 4, 5, 6, 7, which"));
}

// Rank 0 writes its third checkpoint a step late, long before rank 1 launches another collective, or another size.
TEST(CommMismatches, ADepartureElsewhereNamesNobody) {
  for (const int steps : {31, 34, 39, 42})
    for (const bool of_shape : {false, true}) {
      Job job;
      const uint32_t data = job.AddGroup({0, 1}, "DP"), checkpoint = job.AddGroup({0, 1}, "checkpoint");
      for (int step = 1; step <= steps; ++step)
        for (int rank = 0; rank < 2; ++rank) {
          job.Launch(data, rank, "all_reduce", true);
          if (step % 10 == 0 ? rank == 1 || step != 30 : rank == 0 && step == 31)
            job.Launch(checkpoint, rank, "all_gather", true);
          job.Launch(data, rank, "reduce_scatter", true);
        }
      job.Launch(data, 0, "all_reduce", false);
      job.Launch(data, 1, of_shape ? "all_reduce" : "broadcast", false);
      if (of_shape) job.Shape("[9] Float");
      const CommDiagnosis diagnosis = job.Diagnose();
      ASSERT_THAT(diagnosis.findings, SizeIs(1)) << steps;
      ExpectAllOf(diagnosis.findings[0], {0, 1});
      EXPECT_THAT(diagnosis.findings[0].evidence, SizeIs(2)) << steps;
    }
}

TEST(CommMismatches, OfAShapeAloneNobodyIsNamedForWhatHeLeftOut) {
  Groups groups(2, 2);
  groups.Sum(0, 19, true);
  groups.Norm(0, false);
  groups.Sum(0, 1, false);
  groups.job().Shape("[9] Float");
  groups.Sum(1, 19, true);
  groups.Sum(1, 1, false);
  ASSERT_THAT(FindDepartures(groups.job().log()), ElementsAre(Key(0)));
  const Finding finding = groups.Found();
  ExpectAllOf(finding, {0, 1});
  EXPECT_THAT(finding.evidence, SizeIs(2));
}

// Rank 0 comes to the norm before its last sum, as always, and has launched something else; rank 1 is wrong.
TEST(CommMismatches, WhatDoesNotConcernItsCommunicatorNamesNobody) {
  Job job;
  std::vector<int> all(8);
  for (int rank = 0; rank < 8; ++rank) all[static_cast<size_t>(rank)] = rank;
  for (int rank = 0; rank < 8; rank += 2) job.AddGroup({rank, rank + 1}, "TP");
  const uint32_t world = job.AddGroup(all, "world"), evaluation = job.AddGroup({0, 2}, "evaluation");
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 8; ++rank) {
      const bool last = step == 2, early = rank == 0;
      const auto group = static_cast<uint32_t>(rank / 2);
      if (last && early) job.Launch(evaluation, rank, "all_gather", true);
      for (int i = 0; i < 19; ++i) job.Launch(group, rank, "all_reduce", true);
      if (early) job.Launch(world, rank, "all_reduce", !last);
      job.Launch(group, rank, last && rank == 1 ? "broadcast" : "all_reduce", !last || rank > 1);
      if (!early && !(last && rank == 1)) job.Launch(world, rank, "all_reduce", !last);
    }
  ASSERT_THAT(FindDepartures(job.log()), Contains(Key(0)));
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_THAT(diagnosis.findings, SizeIs(1));
  EXPECT_THAT(RanksOf(diagnosis.findings[0].suspects), ElementsAre(1));
  EXPECT_THAT(diagnosis.findings[0].evidence, Not(Contains(HasSubstr("rank 0 launched"))));
}

TEST(CommMismatches, WhatWasMadeGoodNamesNobody) {
  Job job;
  const uint32_t pair = job.AddGroup({0, 1}), world = job.AddGroup({0, 1, 2});
  for (int number = 0; number < 2; ++number) job.Launch(world, 0, "all_reduce", true);
  job.Launch(pair, 0, "all_reduce", false);
  job.Launch(pair, 1, "broadcast", false);
  const std::vector<trace::CommOp>& ops = job.log().ops;
  const Mismatch mismatch{pair, 1, {{"all_reduce", {&ops[2]}}, {"broadcast", {&ops[3]}}}};
  for (const bool made_good : {false, true}) {
    const Departure::Others others{{1}, {{1, nullptr}}};
    const Departure left_out{
        0, std::make_shared<const Departure::Others>(others), &ops[0], &ops[1], {{&ops[2], -1}}, made_good};
    Finding finding;
    NameDepartures(job.log(), mismatch, {{0, {left_out}}}, finding);
    EXPECT_EQ(finding.suspects.size(), made_good ? 0U : 1U);
    EXPECT_EQ(finding.evidence.size(), made_good ? 0U : 1U);
  }
}

// Of rank 2 a record is lost: it can't be compared, and yet it is one of three that don't fit.
TEST(CommMismatches, WhereMoreThanOneOtherSideIsLeftAllStayNamed) {
  Groups groups(3, 3);
  groups.Sum(0, 19, true);
  groups.Norm(0, false);
  groups.Launch(0, "all_gather", false);
  groups.Sum(1, 19, true);
  groups.Sum(1, 1, false);
  groups.Sum(2, 19, true);
  groups.Launch(2, "broadcast", false);
  std::vector<trace::CommOp>& ops = groups.job().log().ops;
  ops.erase(std::ranges::find_if(ops, [](const trace::CommOp& op) { return op.rank == 2 && op.sequence == 7; }));
  const Finding finding = groups.Found();
  EXPECT_THAT(finding.evidence.at(0), HasSubstr("rank 0 launched"));
  EXPECT_THAT(finding.suspects, SizeIs(2));
  ExpectAllOf(finding, {0, 1, 2});
}

}  // namespace
}  // namespace lockstep::detect
