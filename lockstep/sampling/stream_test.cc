#include "lockstep/sampling/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

using testing::HasSubstr;

ItemSet Set(const std::string& text) { return *ParseItemSet(text, {.path = "test"}); }

Stream Make(StreamSpec spec) {
  auto stream = Stream::Create(std::move(spec));
  EXPECT_TRUE(stream.ok()) << stream.status();
  return std::move(*stream);
}

std::vector<uint64_t> Drain(Stream& stream) {
  std::vector<uint64_t> ids;
  while (stream.left() > 0) ids.push_back(stream.Next());
  return ids;
}

TEST(Stream, HasEachItemOnce) {
  Stream stream = Make({.dataset = ItemSet::Below(1000), .items = Set("10-99,500"), .seed = 3});
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    stream.Begin({.number = epoch, .offset = epoch * 333}, epoch);
    std::vector<uint64_t> ids = Drain(stream);
    std::sort(ids.begin(), ids.end());
    ASSERT_EQ(ids.size(), 91U);
    EXPECT_EQ(ids.front(), 10U);
    EXPECT_EQ(ids.back(), 500U);
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  }
}

// In the order of the whole data set, whatever else a job leaves out.
TEST(Stream, OfOverlappingSetsIsOneOrder) {
  Stream whole = Make({.dataset = ItemSet::Below(1000), .seed = 3});
  Stream part = Make({.dataset = ItemSet::Below(1000), .items = Set("100-700"), .seed = 3});
  std::vector<uint64_t> expected = Drain(whole);
  std::erase_if(expected, [](uint64_t id) { return id < 100 || id > 700; });
  EXPECT_EQ(Drain(part), expected);
}

// The order of the whole data set without what the set leaves out, and the states of one who walked it place by place:
// sets of 1 to 700 of 20,000 items in many ranges, laps, offsets, and going on from any state in between.
TEST(Stream, OfASmallSetIsWhatAWalkFinds) {
  constexpr uint64_t kItems = 20'000;
  Rng random(11);
  for (int run = 0; run < 60; ++run) {
    std::vector<ItemRange> ranges;
    for (uint64_t id = random.Below(kItems); id < kItems; id += 2 + random.Below(kItems / (1 + random.Below(40))))
      ranges.push_back({id, std::min(id + random.Below(20), kItems - 1)}), id = ranges.back().last;
    const ItemSet set{ranges};
    const StreamSpec spec{.dataset = ItemSet::Below(kItems), .items = set, .seed = random.Next()};
    Stream whole = Make({.dataset = spec.dataset, .seed = spec.seed}), stream = Make(spec);
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      const Lap lap{.number = epoch * 3, .offset = random.Below(kItems)};
      whole.Begin(lap, epoch);
      stream.Begin(lap, epoch);
      for (uint64_t taken = 0; stream.left() > 0; ++taken) {
        const uint64_t id = whole.Next();
        if (!set.Contains(id)) {
          --taken;
          continue;
        }
        ASSERT_EQ(stream.Next(), id) << run;
        const StreamPlace walked{
            .lap = lap, .epoch = epoch, .taken = taken + 1, .walked = whole.place().walked, .aside = 0, .turns = 0};
        ASSERT_EQ(stream.place(), walked);
        if (random.Below(50) == 0) {
          Stream other = Make(spec);
          ASSERT_TRUE(other.Load(stream.Save()).ok());
          stream = std::move(other);
        }
      }
    }
  }
}

// A walk would look at 2^61 places first.
TEST(Stream, OfASmallSetCostsWhatTheSetHas) {
  const StreamSpec spec{.dataset = ItemSet::Below(uint64_t{1} << 62), .items = Set("1000-1063"), .seed = 2};
  Stream stream = Make(spec);
  std::vector<uint64_t> ids;
  for (uint64_t work = 200; ids.size() < 64;) {  // a look at each, and one more for each that is taken
    ASSERT_TRUE(stream.Find(work));
    ids.push_back(stream.Next());
  }
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids.front(), 1000U);
  EXPECT_EQ(ids.back(), 1063U);
}

// With any slices, and with GoTo in between, what comes is the same.
TEST(Stream, FindsInSlicesWhatItHasNext) {
  Rng random(3);
  for (const char* items : {"0-2999", "17-30", "5,900,3000-3100"}) {
    for (const uint64_t window : {0U, 500U, 4000U}) {
      const StreamSpec spec{.dataset = ItemSet::Below(5000), .items = Set(items), .seed = 9};
      Stream alone = Make(spec), stream = Make(spec);
      alone.Begin({.number = 1, .offset = 4000, .window = window}, 1);
      stream.Begin({.number = 1, .offset = 4000, .window = window}, 1);
      while (alone.left() > 0) {
        uint64_t work = 1 + random.Below(9);
        if (!stream.Find(work)) continue;
        if (random.Below(4) == 0) stream.GoTo(alone.place());
        ASSERT_EQ(stream.Next(), alone.Next());
        ASSERT_EQ(stream.place(), alone.place());
      }
    }
  }
}

TEST(Stream, GoesOnFromItsState) {
  const StreamSpec spec{.dataset = ItemSet::Below(5000), .items = Set("0-2999"), .seed = 9};
  Stream first = Make(spec), second = Make(spec);
  first.Begin({.number = 4, .offset = 777}, 2);
  first.Skip(1234);
  const std::string state = first.Save();
  EXPECT_LT(state.size(), 255U);
  ASSERT_TRUE(second.Load(state).ok());
  EXPECT_EQ(second.place().epoch, 2U);
  EXPECT_EQ(Drain(first), Drain(second));
}

TEST(Stream, OfABillionGoesOnAnywhere) {
  const StreamSpec spec{.dataset = ItemSet::Below(1'000'000'000), .seed = 1};
  Stream first = Make(spec), second = Make(spec);
  first.Skip(100'000'000);
  ASSERT_TRUE(second.Load(first.Save()).ok());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(first.Next(), second.Next());
}

// The batches of 8, then 6, 3 and 8 ranks, put together as they were dealt, are the stream of one rank.
TEST(Stream, IsTheSameForAnyNumberOfRanks) {
  const StreamSpec spec{.dataset = ItemSet::Below(3000), .items = Set("5-2004"), .seed = 2};
  Stream alone = Make(spec);
  std::vector<uint64_t> together;
  std::string state = alone.Save();
  uint64_t left = alone.left();
  for (int phase = 0; left > 0; ++phase) {
    const uint64_t world = std::vector<uint64_t>{8, 6, 3, 8}[static_cast<size_t>(std::min(phase, 3))];
    std::vector<Stream> ranks;
    for (uint64_t rank = 0; rank < world; ++rank) {
      ranks.push_back(Make(spec));
      ASSERT_TRUE(ranks.back().Load(state).ok());
    }
    for (int step = 0; step < 9; ++step) {
      std::vector<std::vector<uint64_t>> dealt;
      for (uint64_t rank = 0; rank < world; ++rank)
        dealt.push_back(TakeShare(ranks[rank], {.rank = rank, .world = world, .per_rank = 7}));
      for (size_t at = 0; at < dealt[0].size(); ++at) {
        for (const auto& ids : dealt) {
          if (at < ids.size()) together.push_back(ids[at]);
        }
      }
    }
    for (const Stream& rank : ranks) EXPECT_EQ(rank.Save(), ranks[0].Save());
    state = ranks[0].Save();
    left = ranks[0].left();
  }
  EXPECT_EQ(together, Drain(alone));
}

TEST(Stream, AWorldLargerThanTheSetLeavesRanksWithoutItems) {
  const StreamSpec spec{.dataset = ItemSet::Below(3), .seed = 2};
  std::vector<uint64_t> all;
  for (uint64_t rank = 0; rank < 8; ++rank) {
    Stream stream = Make(spec);
    const auto ids = TakeShare(stream, {.rank = rank, .world = 8, .per_rank = 4});
    EXPECT_EQ(ids.empty(), rank >= 3) << rank;
    all.insert(all.end(), ids.begin(), ids.end());
    EXPECT_EQ(stream.left(), 0U);
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, (std::vector<uint64_t>{0, 1, 2}));
}

// Of a window with fewer, as many, and more places than the set of 90 has items.
TEST(Stream, OfAWindowTakesWhatTheLapHasThere) {
  for (const uint64_t window : {40U, 90U, 600U}) {
    Stream whole = Make({.dataset = ItemSet::Below(1000), .seed = 3});
    whole.Begin({.number = 2, .offset = 800}, 0);
    std::vector<uint64_t> passing = Drain(whole);
    passing.resize(window);
    std::erase_if(passing, [](uint64_t id) { return id < 10 || id > 99; });
    Stream stream = Make({.dataset = ItemSet::Below(1000), .items = Set("10-99"), .seed = 3});
    stream.Begin({.number = 2, .offset = 800, .window = window}, 0);
    std::vector<uint64_t> ids = Drain(stream), taken_there;
    for (const uint64_t id : ids) {
      if (std::find(passing.begin(), passing.end(), id) != passing.end()) taken_there.push_back(id);
    }
    EXPECT_EQ(taken_there, passing) << window;  // in the lap's sequence
    EXPECT_EQ(stream.place().turns, 0U) << window;
    EXPECT_LE(stream.place().walked, window);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(ids, [] {
      std::vector<uint64_t> all(90);
      for (uint64_t i = 0; i < 90; ++i) all[i] = 10 + i;
      return all;
    }()) << window;
  }
}

// With as many places as items, what the job reads of the lap comes at the lap's own step.
TEST(Stream, OfAWindowAsLongAsTheSetIsInStepWithTheLap) {
  Stream whole = Make({.dataset = ItemSet::Below(100), .seed = 3});
  Stream stream = Make({.dataset = ItemSet::Below(100), .items = Set("0-49"), .seed = 3});
  stream.Begin({.window = 50}, 0);
  const std::vector<uint64_t> lap = Drain(whole), own = Drain(stream);
  for (size_t step = 0; step < 50; ++step) {
    if (lap[step] < 50) {
      EXPECT_EQ(own[step], lap[step]);
    }
  }
}

TEST(Stream, OfAWindowGoesOnFromItsState) {
  for (const uint64_t window : {700U, 3000U, 4000U}) {
    const StreamSpec spec{.dataset = ItemSet::Below(5000), .items = Set("0-2999"), .seed = 9};
    Stream first = Make(spec), second = Make(spec);
    first.Begin({.number = 4, .offset = 4777, .window = window}, 2);
    first.Skip(1234);
    const std::string state = first.Save();
    EXPECT_LT(state.size(), 255U);
    ASSERT_TRUE(second.Load(state).ok());
    EXPECT_EQ(Drain(first), Drain(second));
  }
}

// Two epochs of a job in disjoint windows of one lap: places × items, pairs, and the one against the other, for
// windows with fewer, as many and more places than items.
TEST(Stream, OfWindowsIsUniformAndItsEpochsAreIndependent) {
  for (const uint64_t window : {3U, 6U, 8U}) {
    OrderCounts counts(6);
    for (uint64_t run = 0; run < 40'000; ++run) {
      Stream stream = Make({.dataset = ItemSet::Below(16), .items = Set("3-8"), .seed = Hash(17, run)});
      std::vector<uint32_t> epochs[2];
      for (uint64_t epoch = 0; epoch < 2; ++epoch) {
        stream.Begin({.number = 1, .offset = 11 + epoch * window, .window = window}, epoch);
        for (const uint64_t id : Drain(stream)) epochs[epoch].push_back(static_cast<uint32_t>(id - 3));
      }
      counts.Add(epochs[0], epochs[1]);
    }
    EXPECT_GT(counts.PlaceChance(), 0.001) << window;
    EXPECT_GT(counts.PairChance(), 0.001) << window;
    EXPECT_GT(counts.EpochChance(), 0.001) << window;
  }
}

TEST(Stream, SaysHowFarAwayAnItemOfAWindowIs) {
  for (const uint64_t window : {200U, 500U, 800U}) {
    const StreamSpec spec{.dataset = ItemSet::Below(1000), .items = Set("0-499"), .seed = 4};
    Stream stream = Make(spec), copy = Make(spec);
    stream.Begin({.window = window}, 0);
    copy.Begin({.window = window}, 0);
    const std::vector<uint64_t> ids = Drain(copy);
    stream.Skip(100);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(stream.Ahead(ids[i]), std::nullopt) << window << " " << i;
    double worst = 0;
    for (size_t i = 100; i < 500; ++i) {
      ASSERT_TRUE(stream.Ahead(ids[i]).has_value()) << window << " " << i;
      worst = std::max(worst, std::abs(static_cast<double>(*stream.Ahead(ids[i])) - static_cast<double>(i - 100)));
    }
    EXPECT_LT(worst, 80) << window;  // what lies aside comes evenly, but for O(√n)
  }
}

TEST(Stream, SaysHowFarAwayAnItemIs) {
  Stream stream = Make({.dataset = ItemSet::Below(1000), .seed = 4});
  const std::vector<uint64_t> ids = [](Stream copy) {
    return Drain(copy);
  }(Make({.dataset = ItemSet::Below(1000), .seed = 4}));
  stream.Skip(10);
  EXPECT_EQ(stream.Ahead(ids[9]), std::nullopt);
  EXPECT_EQ(stream.Ahead(ids[10]), 0U);
  EXPECT_EQ(stream.Ahead(ids[500]), 490U);
}

TEST(Stream, RefusesWhatIsNotItsOwn) {
  Stream stream = Make({.dataset = ItemSet::Below(100), .seed = 1});
  Stream other = Make({.dataset = ItemSet::Below(100), .seed = 2});
  const std::string state = stream.Save();
  EXPECT_THAT(Message(other.Load(state)), HasSubstr("of another seed, data set or set of items"));
  EXPECT_THAT(Message(stream.Load("")), HasSubstr("does not begin with"));
  EXPECT_THAT(Message(stream.Load(state.substr(0, state.size() - 30))), HasSubstr("expected its"));
  std::string damaged = state;
  damaged[damaged.size() - 1] = damaged.back() == '0' ? '1' : '0';
  EXPECT_THAT(Message(stream.Load(damaged)), HasSubstr("checksum"));
  EXPECT_THAT(Message(Stream::Create({.dataset = ItemSet::Below(10), .items = Set("5-12")}).status()),
              HasSubstr("items 5-12 are not all in the data set"));
  EXPECT_FALSE(Stream::Create({}).ok());
}

}  // namespace
}  // namespace lockstep::sampling
