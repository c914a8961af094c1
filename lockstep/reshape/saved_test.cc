#include "lockstep/reshape/saved.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::reshape {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SavedTensor Of(std::vector<uint64_t> shape, const std::vector<Box>& boxes) {
  SavedTensor tensor{"w", "float32", std::move(shape), {}};
  for (const Box& box : boxes) tensor.shards.push_back({.box = box});
  return tensor;
}

TEST(Saved, ATensorIsWholeIfItsBoxesMakeItUp) {
  EXPECT_THAT(FindProblems(Of({4, 2}, {{{0, 0}, {2, 2}}, {{2, 0}, {2, 2}}})), IsEmpty());
  EXPECT_THAT(FindProblems(Of({4, 2}, {{{0, 0}, {4, 1}}, {{0, 1}, {4, 1}}})), IsEmpty());
  EXPECT_THAT(FindProblems(Of({}, {{{}, {}}, {{}, {}}})), IsEmpty());
  EXPECT_THAT(FindProblems(Of({0, 3}, {})), IsEmpty());
  EXPECT_THAT(FindProblems(Of({4}, {{{0}, {4}}, {{4}, {0}}, {{4}, {0}}})), IsEmpty()) << "ranks without a part";
  EXPECT_THAT(FindProblems(Of({4}, {{{0}, {4}}, {{0}, {4}}})), IsEmpty()) << "copies";
}

TEST(Saved, NamesWhatIsMissingAndWhatOverlaps) {
  EXPECT_THAT(FindProblems(Of({4, 2}, {{{2, 0}, {2, 2}}})), ElementsAre("w: 4 of its 8 elements are in no shard"));
  EXPECT_THAT(FindProblems(Of({}, {})), ElementsAre("w: 1 of its 1 elements are in no shard"));
  EXPECT_THAT(FindProblems(Of({4, 2}, {{{0, 0}, {3, 2}}, {{2, 0}, {2, 2}}})),
              ElementsAre("w: its shards [0:3, 0:2] and [2:4, 0:2] overlap"));
  EXPECT_THAT(FindProblems(Of({2, 4}, {{{0, 0}, {2, 3}}, {{1, 2}, {1, 2}}})),
              ElementsAre("w: its shards [0:2, 0:3] and [1:2, 2:4] overlap"));
}

TEST(Saved, SizesDoNotOverflow) {
  constexpr uint64_t kHuge = UINT64_MAX;
  EXPECT_FALSE(Fits({{kHuge}, {1}}, {4}));
  EXPECT_FALSE(Fits({{0}, {kHuge}}, {4}));
  EXPECT_FALSE(Fits({{}, {}}, {4}));
  EXPECT_TRUE(Fits({{4}, {0}}, {4}));
  EXPECT_FALSE(Elements({kHuge, 2}, 4).ok());
  EXPECT_FALSE(Elements({0, kHuge, kHuge}, 4).ok());
  EXPECT_EQ(Elements({3, 5}, 4).value(), 15U);
}

}  // namespace
}  // namespace lockstep::reshape
