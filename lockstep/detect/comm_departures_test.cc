#include "lockstep/detect/comm_departures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/detect/comm_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Syndrome;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using trace::OpState;

// Tensor parallel pairs {0, 1}, {2, 3}, ... that all sum their gradients' norm after each step.
class Pairs {
 public:
  explicit Pairs(int ranks) : numbers_(static_cast<size_t>(ranks)) {
    for (int rank = 0; rank < ranks; rank += 2) Add({rank, rank + 1}, "TP");
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    world_ = Add(all, "world");
  }
  // So many collectives of its pair, `ended` or not, and then of the norm, if `norm`.
  void Step(int rank, int in_pair, bool ended, bool norm = true) {
    for (int i = 0; i < in_pair; ++i) Launch(rank, static_cast<uint32_t>(rank / 2), "all_reduce", ended);
    if (norm) Norm(rank, ended);
  }
  void Norm(int rank, bool ended) { Launch(rank, world_, "all_reduce", ended); }
  // Two steps of all that have ended.
  void Begin() {
    for (int step = 0; step < 2; ++step)
      for (int rank = 0; rank < static_cast<int>(numbers_.size()); ++rank) Step(rank, 20, true);
  }
  Job& job() { return job_; }

 private:
  uint32_t Add(const std::vector<int>& ranks, const char* description) {
    const uint32_t group = job_.AddGroup(ranks);
    job_.log().communicators[group].description = description;
    return group;
  }
  void Launch(int rank, uint32_t group, const char* name, bool ended) {
    job_.Add(group, rank, ++numbers_[static_cast<size_t>(rank)][group], name,
             ended ? OpState::kCompleted : OpState::kScheduled);
  }

  Job job_;
  std::vector<std::map<uint32_t, int64_t>> numbers_;
  uint32_t world_ = 0;
};

// Rank 2 leaves some of its pair's collectives out, or adds some; its pair hangs over that, and so do all.
CommDiagnosis Diagnosed(int ranks, int of_rank_2) {
  Pairs pairs(ranks);
  pairs.Begin();
  const int ended = std::min(20, of_rank_2);
  for (int rank = 0; rank < ranks; ++rank) {
    const int mine = rank == 2 ? of_rank_2 : 20;
    const bool in_pair = rank / 2 == 1;
    pairs.Step(rank, in_pair ? ended : mine, true, false);
    if (in_pair) pairs.Step(rank, mine - ended, false, false);
    // Who has one left in the pair does not come to the norm.
    if (!in_pair || mine == ended) pairs.Norm(rank, false);
  }
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
  const std::vector<Departure> found = FindDepartures(pairs.job().log(), {0, 1});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].rank, 0);
  EXPECT_THAT(found[0].others, ElementsAre(1));
  ASSERT_EQ(found[0].more.size(), 1U);
  EXPECT_EQ(found[0].more[0].second, -7);
}

// Stages of other lengths are not alike, and who shows nothing in common is not compared.
TEST(CommDepartures, RanksThatNeverDidTheSameAreNotCompared) {
  Pairs pairs(8);
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 8; ++rank) pairs.Step(rank, rank < 2 ? 9 : 20, true);
  EXPECT_THAT(FindDepartures(pairs.job().log(), {0, 1, 2, 3, 4, 5, 6, 7}), IsEmpty());
}

TEST(CommDepartures, WhereARecordIsLostARankIsNotCompared) {
  Pairs pairs(8);
  pairs.Begin();
  for (int rank = 0; rank < 8; ++rank) pairs.Step(rank, 20, true);
  std::vector<trace::CommOp>& ops = pairs.job().log().ops;
  const auto lost = std::find_if(ops.rbegin(), ops.rend(),
                                 [](const trace::CommOp& op) { return op.rank == 2 && op.communicator == 1; });
  ops.erase(std::next(lost + 3).base());
  EXPECT_THAT(FindDepartures(pairs.job().log(), {2}), IsEmpty());
}

}  // namespace
}  // namespace lockstep::detect
