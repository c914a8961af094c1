// Circles of which the order of launches alone is not the cause.
#include "lockstep/detect/comm_circle_order.h"

#include <gmock/gmock.h>

#include "lockstep/detect/comm_hang.h"
#include "lockstep/detect/comm_test_job.h"

namespace lockstep::detect {
namespace {

using incident::Finding;
using incident::Syndrome;
using testing::ElementsAre;
using testing::IsEmpty;

// Three ranks, each in two groups of two, launch in an order that makes a circle where each waits for what it launched
// before; none does so in rounds that have ended.
class Circle : public testing::Test {
 protected:
  Circle() : first_(job_.AddGroup({0, 1})), second_(job_.AddGroup({1, 2})), third_(job_.AddGroup({0, 2})) {}
  void Round(int rank, int of_two, bool ended) {
    const std::vector<std::vector<uint32_t>> order = {{first_, third_}, {second_, first_}, {third_, second_}};
    for (int i = 0; i < of_two; ++i)
      job_.Launch(order[static_cast<size_t>(rank)][static_cast<size_t>(i)], rank, "all_reduce", ended);
  }
  Finding Only() {
    const CommDiagnosis diagnosis = job_.Diagnose();
    EXPECT_EQ(diagnosis.findings.size(), 1U);
    return diagnosis.findings.at(0);
  }

  Job job_;
  uint32_t first_, second_, third_;
};

TEST_F(Circle, OfAnOrderThatHasEndedBeforeWhoHasNotLaunchedMayHang) {
  for (int rank = 0; rank < 3; ++rank) {
    for (int round = 0; round < 5; ++round) Round(rank, 2, true);
    Round(rank, rank == 0 ? 1 : 2, false);
  }
  const Finding finding = Only();
  EXPECT_EQ(finding.syndrome, Syndrome::kDeadlock);
  EXPECT_FALSE(finding.certain);
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(0));
}

TEST_F(Circle, InAnOrderThatNeverEndedItIsCertain) {
  for (int rank = 0; rank < 3; ++rank) Round(rank, rank == 0 ? 1 : 2, false);
  const Finding finding = Only();
  EXPECT_TRUE(finding.certain);
  EXPECT_THAT(finding.ambiguous_with, IsEmpty());
}

// Rank 1 leaves one out, which is why the others wait for it.
TEST_F(Circle, WhoLaunchesOneFewerThanBeforeIsInAnotherOrder) {
  const uint32_t pair = job_.AddGroup({0, 1}), other = job_.AddGroup({0, 1});
  for (int round = 0; round < 4; ++round)
    for (int rank = 0; rank < 2; ++rank) {
      const bool ended = round < 3;
      for (int i = 0; i < (ended || rank == 0 ? 4 : 3); ++i) job_.Launch(pair, rank, "all_reduce", ended || i < 3);
      if (ended || rank == 1) job_.Launch(other, rank, "all_reduce", ended);
    }
  const Finding finding = Only();
  EXPECT_EQ(finding.syndrome, Syndrome::kDeadlock);
  EXPECT_TRUE(finding.certain);
  EXPECT_THAT(finding.ambiguous_with, IsEmpty());
}

// What a dump of the ops under way tells does not show whether it waits.
TEST_F(Circle, WhoMayNotWaitMayHang) {
  const uint32_t pipe = job_.AddGroup({0, 1}), pair = job_.AddGroup({0, 1});
  job_.Transfer(pipe, 0, trace::Direction::kReceive, 1);
  job_.Collectives(pair, 1, 1, 2);
  const Finding finding = Only();
  EXPECT_EQ(finding.syndrome, Syndrome::kDeadlock);
  EXPECT_FALSE(finding.certain);
  EXPECT_THAT(RanksOf(finding.ambiguous_with), ElementsAre(0));
}

}  // namespace
}  // namespace lockstep::detect
