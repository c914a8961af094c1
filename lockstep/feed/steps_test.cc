#include "lockstep/feed/steps.h"

#include <gtest/gtest.h>

#include <vector>

#include "lockstep/sampling/stream.h"

namespace lockstep::feed {
namespace {

sampling::Stream Thirds() {
  std::vector<sampling::ItemRange> ranges;
  for (uint64_t i = 0; i < 3000; i += 3) ranges.push_back({i, i});
  sampling::Stream stream = *sampling::Stream::Create(
      {.dataset = sampling::ItemSet::Below(3000), .items = sampling::ItemSet(ranges), .seed = 11});
  stream.Begin({1, 77}, 0);
  return stream;
}

// The items that a world takes at one step, rank after rank.
std::vector<uint64_t> Step(sampling::Stream& stream, const EpochCut& cut) {
  std::vector<uint64_t> all, joined;
  const uint64_t before = stream.place().taken;
  for (uint64_t i = cut.Share(before, 0).next - before; i > 0; --i) all.push_back(stream.Next());
  for (uint64_t rank = 0; rank < cut.world; ++rank) {
    const StepShare share = cut.Share(before, rank);
    EXPECT_EQ(share.next, stream.place().taken);
    for (uint64_t i = 0; i < share.items; ++i) joined.push_back(all[share.position - before + i]);
  }
  return joined;
}

TEST(Steps, WorldsOfOtherSizesGoOnWithoutAGap) {
  sampling::Stream stream = Thirds(), whole = Thirds();
  std::vector<uint64_t> items, expected;
  while (whole.left() > 0) expected.push_back(whole.Next());
  for (int step = 0; stream.left() > 0; ++step) {
    const uint64_t worlds[] = {8, 6, 3, 8};
    const EpochCut cut{stream.size(), 16, worlds[std::min(step / 2, 3)]};
    const std::vector<uint64_t> taken = Step(stream, cut);
    items.insert(items.end(), taken.begin(), taken.end());
  }
  EXPECT_EQ(items, expected);
}

TEST(Steps, TheLastStepIsSharedEvenly) {
  const EpochCut cut{.items = 107, .batch = 10, .world = 4};  // 2 full steps of 40, then 27: 7, 7, 7, 6
  EXPECT_FALSE(cut.Share(40, 0).last);
  std::vector<uint64_t> counts;
  for (uint64_t rank = 0; rank < 4; ++rank) counts.push_back(cut.Share(80, rank).items);
  EXPECT_EQ(counts, (std::vector<uint64_t>{7, 7, 7, 6}));
  EXPECT_TRUE(cut.Share(80, 3).last);
  EXPECT_EQ(cut.Share(80, 3).position, 101U);
}

// Whatever is left, nothing gets lost, no batch is longer than it may be, and none is empty.
TEST(Steps, EachRankHasAnItemInEachStep) {
  for (const uint64_t world : {1U, 2U, 3U, 4U, 7U}) {
    for (const uint64_t batch : {2U, 3U, 8U}) {
      for (uint64_t items = world; items < 4 * world * batch; ++items) {
        const EpochCut cut{items, batch, world};
        uint64_t position = 0, steps = 0;
        for (; !cut.IsOver(position); ++steps) {
          const uint64_t next = cut.Share(position, 0).next;
          for (uint64_t rank = 0; rank < world; ++rank) {
            const StepShare share = cut.Share(position, rank);
            ASSERT_GE(share.items, 1U) << items << " " << batch << " " << world;
            ASSERT_LE(share.items, batch);
            ASSERT_EQ(share.position + share.items, rank + 1 < world ? cut.Share(position, rank + 1).position : next);
            ASSERT_EQ(share.last, next == items);
          }
          position = next;
        }
        ASSERT_EQ(position, items);
        ASSERT_EQ(steps, (items + cut.full() - 1) / cut.full());
      }
    }
  }
}

TEST(Steps, TheLastButOneLeavesAnItemToEachRank) {
  const EpochCut cut{.items = 33, .batch = 8, .world = 4};  // 29: 8, 7, 7, 7; then 4
  EXPECT_EQ(cut.Share(0, 0).items, 8U);
  EXPECT_EQ(cut.Share(0, 3).items, 7U);
  EXPECT_FALSE(cut.Share(0, 3).last);
  EXPECT_EQ(cut.Share(29, 3).items, 1U);
}

TEST(Steps, AWorldThatHasGrownMayLeaveSomeWithNone) {
  const EpochCut cut{.items = 42, .batch = 10, .world = 4};
  EXPECT_EQ(cut.Share(40, 1).items, 1U);
  EXPECT_EQ(cut.Share(40, 2).items, 0U);
  EXPECT_TRUE(cut.Share(40, 2).last);
}

TEST(Steps, DropLastEndsTheEpochWithItsLastFullStep) {
  const EpochCut cut{.items = 107, .batch = 10, .world = 4, .drop_last = true};
  EXPECT_TRUE(cut.Share(40, 0).last);
  EXPECT_TRUE(cut.IsOver(80));
  EXPECT_FALSE(cut.IsOver(67));
  const EpochCut one_more{.items = 81, .batch = 10, .world = 4, .drop_last = true};
  EXPECT_EQ(one_more.Share(40, 3).items, 10U);
  EXPECT_TRUE(one_more.Share(40, 3).last);
}

}  // namespace
}  // namespace lockstep::feed
