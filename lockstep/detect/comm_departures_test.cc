#include "lockstep/detect/comm_departures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "lockstep/detect/comm_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Syndrome;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Not;
using trace::OpState;

// Tensor parallel pairs {0, 1}, {2, 3}, ... that all sum their gradients' norm after each step.
class Pairs {
 public:
  explicit Pairs(int ranks) : ranks_(ranks) {
    for (int rank = 0; rank < ranks; rank += 2) job_.AddGroup({rank, rank + 1}, "TP");
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    world_ = job_.AddGroup(all, "world");
  }
  // So many collectives of its pair, `ended` or not, and then of the norm, if `norm`.
  void Step(int rank, int in_pair, bool ended, bool norm = true) {
    for (int i = 0; i < in_pair; ++i) job_.Launch(static_cast<uint32_t>(rank / 2), rank, "all_reduce", ended);
    if (norm) Norm(rank, ended);
  }
  void Norm(int rank, bool ended) { job_.Launch(world_, rank, "all_reduce", ended); }
  // A step of all that has ended.
  void StepOfAll(int in_pair) {
    for (int rank = 0; rank < ranks_; ++rank) Step(rank, in_pair, true);
  }
  void Begin() {
    for (int step = 0; step < 2; ++step) StepOfAll(20);
  }
  // Rank 2 leaves some of its pair's collectives out, or adds some; its pair hangs over that, and so do all.
  void Hang(int of_rank_2) {
    const int ended = std::min(20, of_rank_2);
    for (int rank = 0; rank < ranks_; ++rank) {
      const int mine = rank == 2 ? of_rank_2 : 20;
      const bool in_pair = rank / 2 == 1;
      Step(rank, in_pair ? ended : mine, true, false);
      if (in_pair) Step(rank, mine - ended, false, false);
      // Who has one left in the pair does not come to the norm.
      if (!in_pair || mine == ended) Norm(rank, false);
    }
  }
  std::vector<int> Departed() {
    std::vector<int> ranks;
    for (const auto& [rank, departures] : FindDepartures(job_.log())) ranks.push_back(rank);
    return ranks;
  }
  Job& job() { return job_; }

 private:
  const int ranks_;
  Job job_;
  uint32_t world_ = 0;
};

CommDiagnosis Diagnosed(int ranks, int of_rank_2) {
  Pairs pairs(ranks);
  pairs.Begin();
  pairs.Hang(of_rank_2);
  return pairs.job().Diagnose();
}

TEST(CommDepartures, OfACircleTheEvidenceTellsWhoLeftCollectivesOutOrAddedSomeHoweverMany) {
  for (const int count : {1, 5, 6, 19, 21, 26, 40}) {
    const CommDiagnosis diagnosis = Diagnosed(8, count);
    ASSERT_EQ(diagnosis.findings.size(), 1U) << count;
    EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock) << count;
    EXPECT_THAT(diagnosis.findings[0].ambiguous_with, IsEmpty()) << count;
    EXPECT_THAT(diagnosis.findings[0].evidence[0], HasSubstr("rank 2 launched ")) << count;
    EXPECT_TRUE(diagnosis.findings[0].certain) << count;
  }
  EXPECT_THAT(Diagnosed(8, 14).findings[0].evidence[0],
              HasSubstr("rank 2 launched between all_reduce 2 of world (4) and 3 6 all_reduce of TP (1) fewer than"));
}

TEST(CommDepartures, OfTwoWhoDidNotDoWhatBothHadDoneIsNamedUncertain) {
  Pairs pairs(2);
  pairs.Begin();
  pairs.Step(0, 13, true);
  pairs.Step(1, 13, true, false);
  pairs.Step(1, 7, false, false);
  const Departures found = FindDepartures(pairs.job().log());
  ASSERT_THAT(found, ElementsAre(Key(0)));
  ASSERT_EQ(found.at(0).size(), 1U);
  const Departure& one = found.at(0)[0];
  EXPECT_THAT(one.others->ranks, ElementsAre(1));
  ASSERT_EQ(one.more.size(), 1U);
  EXPECT_EQ(one.more[0].second, -7);
}

// They launch ahead, in another order than others, and it all ends.
TEST(CommDepartures, OfACircleTheEvidenceTellsNothingThatAllHaveGonePast) {
  Pairs pairs(8);
  pairs.Begin();
  for (const int by : {-1, 1})
    for (int rank = 0; rank < 8; ++rank) pairs.Step(rank, rank / 2 == 1 ? 20 + by : 20, true);
  EXPECT_THAT(pairs.Departed(), ElementsAre(2, 3));
  EXPECT_TRUE(FindDepartures(pairs.job().log()).at(2).at(0).made_good);
  pairs.Hang(14);
  const CommDiagnosis diagnosis = pairs.job().Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 1U);
  EXPECT_EQ(diagnosis.findings[0].syndrome, Syndrome::kDeadlock);
  EXPECT_THAT(
      diagnosis.findings[0].evidence,
      ElementsAre(HasSubstr("rank 2 launched between all_reduce 4 of world (4) and 5 6 all_reduce of TP (1) fewer"),
                  HasSubstr(" wait in "), HasSubstr(" waits in ")));
}

// Ranks 2 and 3 leave ten of twenty out and come first: two of the three that have come.
TEST(CommDepartures, ThoseThatHaveComeFirstAreNotTheUsualOnes) {
  for (const bool they_go_on : {false, true}) {
    Pairs pairs(8);
    pairs.Begin();
    if (they_go_on)
      for (const int rank : {2, 3, 4}) pairs.Step(rank, 20, true);
    for (const int rank : {2, 3}) pairs.Step(rank, 10, false);
    pairs.Step(4, 20, false);
    for (const int rank : {0, 1, 5, 6, 7}) pairs.Step(rank, 15, false, false);
    EXPECT_THAT(pairs.Departed(), ElementsAre(2, 3)) << they_go_on;
  }
}

// Ten are usual now and then.
TEST(CommDepartures, WhoIsAheadOfTheFirstThatHaveComeDoesNotDepart) {
  Pairs pairs(8);
  for (const int in_pair : {20, 10, 20}) pairs.StepOfAll(in_pair);
  for (const int rank : {2, 3}) pairs.Step(rank, 10, false);
  pairs.Step(4, 15, false, false);
  for (const int rank : {0, 1, 5, 6, 7}) pairs.Step(rank, 5, false, false);
  EXPECT_THAT(pairs.Departed(), IsEmpty());
}

// Numbers are what files say: there may be very few ops of very large ones.
TEST(CommDepartures, WhatItTakesGoesByOpsNotByTheirNumbers) {
  Job job;
  int rank = 0;
  for (const int64_t number : {int64_t{1}, int64_t{1'000'000'000'000'000}, std::numeric_limits<int64_t>::max() - 1}) {
    const uint32_t group = job.AddGroup({rank, rank + 1}, "TP");
    for (int member = 0; member < 2; ++member, ++rank) {
      job.Add(group, rank, number, "all_reduce", OpState::kCompleted);
      job.Add(group, rank, number + 1, member == 0 ? "all_reduce" : "all_gather", OpState::kScheduled);
    }
  }
  const CommDiagnosis diagnosis = job.Diagnose();
  ASSERT_EQ(diagnosis.findings.size(), 3U);
  for (const incident::Finding& finding : diagnosis.findings) EXPECT_EQ(finding.syndrome, Syndrome::kMismatched);
}

// Each of 1,024 pairs hangs over another collective: without a description all are looked at, each by itself.
TEST(CommDepartures, ManyPairs) {
  constexpr int kRanks = 2048;
  for (const char* description : {"TP", "undefined"}) {
    Job job;
    std::vector<uint32_t> pairs, across;
    for (int rank = 0; rank < kRanks; rank += 2) pairs.push_back(job.AddGroup({rank, rank + 1}, description));
    for (int rank = 0; rank < kRanks; rank += 4)
      for (const int first : {rank, rank + 1}) across.push_back(job.AddGroup({first, first + 2}, "undefined"));
    for (int step = 0; step <= 100; ++step)
      for (int rank = 0; rank < kRanks; ++rank) {
        const auto all = static_cast<size_t>(rank);
        const bool ended = step < 100;
        job.Launch(pairs[all / 2], rank, ended || rank % 2 == 0 ? "all_reduce" : "all_gather", ended);
        if (ended) job.Launch(across[all / 4 * 2 + all % 2], rank, "all_reduce", true);
      }
    EXPECT_EQ(job.Diagnose().findings.size(), pairs.size()) << description;
  }
}

// Stages of other lengths are not alike, and who shows nothing in common is not compared.
TEST(CommDepartures, RanksThatNeverDidTheSameAreNotCompared) {
  Pairs pairs(8);
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 8; ++rank) pairs.Step(rank, rank < 2 ? 9 : 20, true);
  EXPECT_THAT(FindDepartures(pairs.job().log()), IsEmpty());
}

TEST(CommDepartures, WhereARecordIsLostARankIsNotCompared) {
  Pairs pairs(8);
  pairs.Begin();
  for (int rank = 0; rank < 8; ++rank) pairs.Step(rank, 20, true);
  std::vector<trace::CommOp>& ops = pairs.job().log().ops;
  const auto lost = std::find_if(ops.rbegin(), ops.rend(),
                                 [](const trace::CommOp& op) { return op.rank == 2 && op.communicator == 1; });
  ops.erase(std::next(lost + 3).base());
  EXPECT_THAT(FindDepartures(pairs.job().log()), Not(Contains(Key(2))));
}

}  // namespace
}  // namespace lockstep::detect
