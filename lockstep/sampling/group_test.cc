#include "lockstep/sampling/group.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/sampling/random.h"
#include "lockstep/sampling/stream.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

std::shared_ptr<const ItemSet> Set(const std::string& text) {
  return std::make_shared<const ItemSet>(*ParseItemSet(text, {.path = "test"}));
}

void DecideAnew(Group& group) {
  if (group.IsStale()) group.Decide(Choose(group.Ask()));
}

TEST(Group, AJobWithoutOthersHasTheLapsOfOneThatIsAlone) {
  Group group({.items = 100, .cache_items = 5});
  group.Join(1, Set("0-49"));
  for (uint64_t epoch = 0; epoch < 4; ++epoch)
    EXPECT_EQ(group.Begin(1, static_cast<int64_t>(epoch) * 777), (Lap{.number = epoch}));
}

TEST(Group, JobsOfOnePaceHaveCommonOrders) {
  Group group({.items = 2000, .cache_items = 100});
  group.Join(1, Set("0-1499"));
  EXPECT_EQ(group.Begin(1, 0), Lap{});
  group.Join(2, Set("500-1999"));
  EXPECT_TRUE(group.IsStale());
  DecideAnew(group);
  EXPECT_FALSE(group.IsStale());
  EXPECT_EQ(group.choice().policy, Policy::kCommon);
  EXPECT_EQ(group.choice().loads.size(), 2U);
  EXPECT_EQ(group.Begin(2, 10), Lap{});
}

// Nested sets, and a cache that holds a small part: the small one's epochs are windows of the laps of the large one.
TEST(Group, SetsOfUnlikeSizeHavePacedOrders) {
  Group group({.items = 4000, .cache_items = 100});
  group.Join(1, Set("0-999"));
  group.Join(2, Set("0-3999"));
  DecideAnew(group);
  EXPECT_EQ(group.choice().policy, Policy::kPaced);
  EXPECT_EQ(group.Begin(2, 0).window, 0U);
  EXPECT_EQ(group.Begin(1, 0).window, 0U);  // no one knows yet how fast they are
  for (const int64_t now : {1'000'000, 2'000'000, 3'000'000}) group.Begin(1, now);
  const Lap large = group.Begin(2, 4'000'000), small = group.Begin(1, 4'000'000);
  EXPECT_EQ(large.window, 0U);
  EXPECT_EQ(small, (Lap{.number = large.number, .offset = large.offset, .window = 1000}));
}

TEST(Group, JobsOfUnlikePaceHavePacedOrders) {
  Group group({.items = 1000, .cache_items = 50});
  for (const uint64_t job : {1U, 2U}) {
    group.Join(job, Set("0-999"));
    group.Begin(job, 0);
  }
  DecideAnew(group);
  EXPECT_EQ(group.choice().policy, Policy::kCommon);
  group.Pace(1, 1000);
  group.Pace(2, 4000);
  EXPECT_TRUE(group.IsStale());
  DecideAnew(group);
  EXPECT_EQ(group.choice().policy, Policy::kPaced);
  group.Pace(2, 500);  // it has one
  EXPECT_EQ(group.PaceOf(2), 4000);
}

TEST(Group, AGivenPolicyIsNotChosen) {
  Group group({.items = 4000, .policy = Policy::kCommon});
  group.Join(1, Set("0-999"));
  group.Join(2, Set("0-3999"));
  EXPECT_FALSE(group.IsStale());
  EXPECT_EQ(group.choice().policy, Policy::kCommon);
}

TEST(Group, SetsTooLargeToRehearseWholeAreThinned) {
  Group group({.items = 4'000'000, .cache_items = 20'000});
  group.Join(1, Set("0-999999"));
  group.Join(2, Set("0-3999999"));
  DecideAnew(group);
  EXPECT_EQ(group.choice().policy, Policy::kPaced);
  const uint64_t common = group.choice().loads.at(0).second;
  EXPECT_GT(common, 6'000'000U);  // of 4,000,000 items, and four times 1,000,000
  EXPECT_LE(common, 8'000'000U);
}

// Half of each set is in the other: with a cache too small to keep anything, that half is read once if orders are
// common.
TEST(Group, ThinnedSetsOverlapAsMuchAsTheWholeOnes) {
  Group group({.items = 90'000, .cache_items = 900});
  group.Join(1, Set("0-59999"));
  group.Join(2, Set("30000-89999"));
  DecideAnew(group);
  const uint64_t common = group.choice().loads.at(0).second;
  EXPECT_GT(common, 85'000U);
  EXPECT_LT(common, 110'000U) << "of 120,000, were nothing shared";
}

// A job of seven items beside one of nine that is twice as slow; the second comes late, and now and then the service
// dies and both go on from what they saved. What the first gets of two epochs is as uniform as without that.
void ExpectUniformThroughRestarts(std::optional<Policy> policy, uint64_t seed) {
  OrderCounts counts(7);
  const std::shared_ptr<const ItemSet> sets[] = {Set("1-7"), Set("0-5,7-9")};
  for (uint64_t run = 0; run < 1500; ++run) {
    Rng rng(Hash(seed, run, 99));
    std::vector<std::vector<uint32_t>> got(2);
    std::string states[2];
    const int64_t joins = static_cast<int64_t>(rng.Below(6)) * 1000;
    int64_t now = 0;
    while (got[1].size() < 7) {
      Group group({.items = 10, .seed = Hash(seed, run), .cache_items = 1, .policy = policy});
      std::vector<Stream> streams;
      for (uint64_t job = 0; job < 2; ++job)
        streams.push_back(
            *Stream::Create({.dataset = ItemSet::Below(10), .items = *sets[job], .seed = Hash(seed, run)}));
      for (uint64_t step = 3 + rng.Below(9); step > 0; --step, now += 1000) {
        for (uint64_t job = 0; job < 2; ++job) {
          Stream& stream = streams[job];
          if (job == 1 && (now < joins || now % 2000 != 0)) continue;
          if (!group.Has(job)) {
            group.Join(job, sets[job]);
            DecideAnew(group);
            if (states[job].empty()) {
              stream.Begin(group.Begin(job, now), 0);
            } else {
              ASSERT_TRUE(stream.Load(states[job]).ok());
              group.GoOn(job, stream.place().lap.number, now);
            }
          }
          const uint64_t epoch = stream.place().epoch, id = stream.Next();
          if (job == 0 && epoch < 2) got[epoch].push_back(static_cast<uint32_t>(id - 1));
          if (stream.left() == 0) stream.Begin(group.Begin(job, now + 1000), epoch + 1);
          states[job] = stream.Save();
        }
      }
    }
    ASSERT_EQ(got[0].size(), 7U);
    counts.Add(got[0], got[1]);
  }
  EXPECT_GT(counts.PlaceChance(), 0.001) << seed;
  EXPECT_GT(counts.PairChance(), 0.001) << seed;
  EXPECT_GT(counts.EpochChance(), 0.001) << seed;
}

TEST(Group, IsUniformThroughRestarts) {
  for (uint64_t seed = 0; seed < 3; ++seed)
    for (const std::optional<Policy> policy : {std::optional(Policy::kCommon), std::optional(Policy::kPaced)})
      ExpectUniformThroughRestarts(policy, seed);
}

}  // namespace
}  // namespace lockstep::sampling
