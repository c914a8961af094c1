#include "lockstep/feed/dealt_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lockstep::feed {
namespace {

using sampling::Stream;

Stream StreamOf(uint64_t universe, uint64_t items, uint64_t window, uint64_t seed) {
  std::optional<sampling::ItemSet> set;
  const sampling::ItemRange range{universe - items, universe - 1};
  if (items < universe) set = sampling::ItemSet(std::span(&range, 1));
  Stream stream = *Stream::Create({.dataset = sampling::ItemSet::Below(universe), .items = set, .seed = seed});
  stream.Begin({.number = 1, .offset = seed % universe, .window = window}, 0);
  return stream;
}

// As if the rank were alone: it skips what is the others'.
std::vector<uint64_t> TakeAlone(Stream& stream, const EpochCut& cut, uint32_t rank) {
  const uint64_t before = stream.place().taken;
  const StepShare share = cut.Share(before, rank);
  std::vector<uint64_t> items;
  stream.Skip(share.position - before);
  for (uint64_t i = 0; i < share.items; ++i) items.push_back(stream.Next());
  stream.Skip(share.next - share.position - share.items);
  return items;
}

// In slices of `places`.
std::vector<uint64_t> Take(DealtSteps& dealt, Stream& stream, const EpochCut& cut, uint32_t rank,
                           const std::vector<uint32_t>& here, uint64_t places = UINT64_MAX) {
  if (!stream.SkipsAtOnce() && !dealt.Has(stream.place(), rank)) {
    StepWalk& walk = dealt.Begin(stream, stream.place(), cut, here);
    while (!walk.GoOn(places)) {
    }
    dealt.Keep();
  }
  return dealt.Take(stream, cut, rank);
}

// Worlds of which some ranks are here, sets, windows, and an order in which ranks take their steps: all at random.
TEST(DealtSteps, GiveEachRankWhatItHadAlone) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 300; ++i) {
    const uint64_t universe = 20 + random() % 300, items = 1 + random() % universe;
    const uint64_t window = random() % 2 == 0 ? 0 : 1 + random() % universe;
    const auto world = static_cast<uint32_t>(1 + random() % std::min<uint64_t>(items, 7));
    const EpochCut cut{items, 1 + random() % 6, world, random() % 2 == 0};
    const Stream begin = StreamOf(universe, items, window, random() % 1000);
    DealtSteps dealt;
    std::vector<std::pair<Stream, Stream>> ranks(world, {begin, begin});  // together, and alone
    std::vector<uint32_t> here;
    for (int turn = 0; turn < 100; ++turn) {
      if (here.size() < world && random() % 3 == 0) here.push_back(static_cast<uint32_t>(here.size()));
      if (here.empty()) continue;
      const uint32_t rank = here[random() % here.size()];
      auto& [stream, alone] = ranks[rank];
      if (cut.IsOver(stream.place().taken)) continue;
      ASSERT_EQ(TakeAlone(alone, cut, rank), Take(dealt, stream, cut, rank, here, 1 + random() % 50)) << i;
      ASSERT_EQ(alone.place(), stream.place()) << i;
    }
  }
}

TEST(DealtSteps, AStepIsWalkedOnceForAllWhoAreHere) {
  constexpr uint32_t kWorld = 50;
  const EpochCut cut{4000, 8, kWorld};
  std::vector<Stream> ranks(kWorld, StreamOf(8000, 4000, 0, 1));
  const std::vector<uint32_t> here{3, 49, 20};
  DealtSteps dealt;
  for (int step = 0; step < 10; ++step) {
    for (const uint32_t rank : here) EXPECT_EQ(8U, Take(dealt, ranks[rank], cut, rank, here).size());
  }
  EXPECT_EQ(10U, dealt.walks());
  Take(dealt, ranks[7], cut, 7, {3, 7, 20, 49});  // it came later
  EXPECT_EQ(11U, dealt.walks());
}

}  // namespace
}  // namespace lockstep::feed
