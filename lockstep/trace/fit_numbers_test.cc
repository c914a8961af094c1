#include "lockstep/trace/fit_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::trace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<float> kEven{1, 2, 3, 4, 5}, kUneven{1, 1.5, 3, 3.2, 5};

std::vector<float> Ends(const std::vector<float>& group, const Numbers& ops, float later = 0) {
  std::vector<float> ends;
  for (const uint32_t op : ops) ends.push_back(group[op] + later);
  return ends;
}

void ExpectNumbers(const std::vector<float>& group, const Numbers& ops, float later, Later told) {
  const NumberedByEnds numbered = NumbersByEnds(Ends(group, ops, later), group, told);
  EXPECT_EQ(numbered.numbers, ops) << later << " s, told " << told.least << " to " << told.most;
  EXPECT_THAT(numbered.doubtful, IsEmpty()) << later << " s, told " << told.least << " to " << told.most;
}

TEST(NumbersByEnds, AreToldByTheClockWhereIntervalsAreEven) {
  for (const Numbers& ops : std::vector<Numbers>{{0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {0, 2, 3}, {0, 1, 4}, {4}, {1, 3}})
    for (const float later : {0.0F, 2.0F, -1.0F}) ExpectNumbers(kEven, ops, later, {later, later});
}

TEST(NumbersByEnds, AreToldByIntervalsWhateverTheClock) {
  for (const Numbers& ops : std::vector<Numbers>{{0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {0, 2, 3}})
    for (const float later : {0.0F, 2.0F, -1.0F, 100.0F}) ExpectNumbers(kUneven, ops, later, {});
}

TEST(NumbersByEnds, AreOfAClockThatMovesBetweenWhatIsTold) {
  ExpectNumbers(kEven, {2, 3, 4}, 0.3F, {0.1F, 0.6F});
  ExpectNumbers(kEven, {2, 3, 4}, 0.04F, {});
}

TEST(NumbersByEnds, StayWhereTwoAnswersFitAboutEqually) {
  for (const Later told : {Later{0.5F, 0.5F}, Later{0, 1}, Later{0.7F, 0.7F}}) {
    const NumberedByEnds numbered = NumbersByEnds(Ends(kEven, {0, 1, 2}, 1), kEven, told);
    EXPECT_THAT(numbered.numbers, ElementsAre(0, 1, 2));
    EXPECT_THAT(numbered.doubtful, ElementsAre(0, 1, 2));
    EXPECT_LE(numbered.clock.least, 0);
    EXPECT_EQ(numbered.clock.most, 1);
  }
  const Later unsure{0, 0, 0.2F};
  EXPECT_THAT(NumbersByEnds(Ends(kEven, {0, 1, 2}), kEven, unsure).doubtful, ElementsAre(0, 1, 2));
  ExpectNumbers(kEven, {0, 1, 2}, 0, {0, 0, 0.05F});
}

// Of thousands that are lacking, those near in time are looked at.
TEST(NumbersByEnds, AreToldWhereManyAreLost) {
  std::vector<float> group;
  Numbers ops;
  for (uint32_t op = 0; op < 4000; ++op) {
    group.push_back((op == 0 ? 0 : group.back()) + 0.001F * static_cast<float>(1 + op * 7919 % 13));
    if (op % 2 == 1 || (op > 1000 && op < 1100)) ops.push_back(op);
  }
  ExpectNumbers(group, ops, 0.01F, {0.01F, 0.01F});
}

// A row may end with some delay of its own: nearer to the next op's end than to that of its own.
TEST(NumbersByEnds, StayOfARowThatIsLate) {
  const NumberedByEnds numbered = NumbersByEnds({1, 2, 3, 4.6F}, kEven, {});
  EXPECT_THAT(numbered.numbers, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(numbered.doubtful, ElementsAre(3));
}

TEST(NumbersByStarts, StayWhereOthersFitLittleBetter) {
  EXPECT_EQ(NumbersByStarts({2.1F, 3.2F}, kEven), (Numbers{1, 2}));
  EXPECT_EQ(NumbersByStarts({1.5F, 2.4F}, kEven), std::nullopt);
}

}  // namespace
}  // namespace lockstep::trace
