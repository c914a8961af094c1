#include "lockstep/trace/kineto_alike.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr double kSure = 0.001;  // error of a share

std::vector<UsualTime> Times(const std::vector<double>& shares, double error = kSure) {
  std::vector<UsualTime> times;
  for (const double share : shares) times.push_back({share, error});
  return times;
}

TEST(SegmentKinds, AreOfThoseBetweenTheSameTransfers) {
  // Segments 0 to 4; what segment 1 and 3 received they sent on, and behind 4 is a collective.
  const RoleForm form{.cuts = 6,
                      .parts = {},
                      .names = {"recv", "send", "recv", "send", "allreduce"},
                      .streams = {},
                      .input_cut = {0, 2, 0, 4, 5},
                      .awaited_cut = {1, RoleForm::kNever, 3, RoleForm::kNever, RoleForm::kNever},
                      .behind = {}};
  const std::vector<OpType> types = {OpType::kForwardRecv, OpType::kForwardSend, OpType::kForwardRecv,
                                     OpType::kForwardSend, OpType::kCollective};
  EXPECT_THAT(KindsByTransfers(form, types),
              ElementsAre(ElementsAre(0), ElementsAre(1, 3), ElementsAre(2), ElementsAre(4)));
}

TEST(SegmentKinds, ArePartedByTimesThatClearlyDiffer) {
  EXPECT_THAT(KindsByTime({0, 1, 2, 3, 4}, Times({0.1, 0.2, 0.11, 0.3, 0.21})),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 4), ElementsAre(3)));
  EXPECT_THAT(KindsByTime({1, 3}, Times({9, 0.2, 9, 0.21})), ElementsAre(ElementsAre(1, 3)));
  EXPECT_THAT(KindsByTime({}, {}), IsEmpty());
}

TEST(SegmentKinds, CountThoseThatAreOfAnotherKindThanMost) {
  EXPECT_EQ(CountOthers({0, 1, 2, 3, 4}, Times({0.1, 0.2, 0.1, 0.1, 0.2})), 2U);
  EXPECT_EQ(CountOthers({0, 1, 2}, Times({0.1, 0.1, 0.1})), 0U);
  // The first may have more to do.
  EXPECT_EQ(CountOthers({0, 1, 2}, Times({0.2, 0.1, 0.1})), 0U);
  EXPECT_EQ(CountOthers({0, 1, 2}, Times({0.1, 0.1, 0.2})), 1U);
  // By chance.
  EXPECT_EQ(CountOthers({0, 1, 2, 3, 4}, Times({0.1, 0.2, 0.1, 0.1, 0.2}, 0.3)), 0U);
  // As lengths vary.
  EXPECT_EQ(CountOthers({0, 1, 2, 3, 4}, Times({0.1, 0.13, 0.115, 0.19, 0.21})), 2U);
  EXPECT_EQ(CountOthers({0, 1, 2, 3, 4}, Times({0.1, 0.13, 0.115, 0.16, 0.19})), 0U);
}

TEST(UsualTimes, AreOffByChanceAsTheirSharesVary) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal(1, 0.1);
  std::vector<double> shares(400);
  for (double& share : shares) share = normal(random);
  const UsualTime usual = UsualTimeOf(shares);
  EXPECT_NEAR(usual.share, 1, 0.02);
  EXPECT_NEAR(usual.error, 1.25 * 0.1 / 20, 0.001);
  EXPECT_TRUE(std::isinf(UsualTimeOf({1, 1, 1}).error));
}

}  // namespace
}  // namespace lockstep::trace
