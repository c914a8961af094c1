// What the published loaders do wrong, by the tests that ours pass; and what they prepare.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/sampling/baselines/published_dsa.h"
#include "lockstep/sampling/baselines/substitution.h"
#include "lockstep/sampling/test_feed.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling::baselines {
namespace {

std::vector<Item> Below(Item size) {
  std::vector<Item> items;
  for (Item item = 0; item < size; ++item) items.push_back(item);
  return items;
}

// Places × items of 400 epochs with a cache of a fifth of the items, after one that filled it.
template <typename Loader>
double PlaceChanceOf(Loader loader) {
  const std::vector<Item> items = Below(20);
  loader.Epoch(items);
  OrderCounts counts(items.size());
  for (int epoch = 0; epoch < 400; ++epoch) counts.AddPlaces(loader.Epoch(items));
  return counts.PlaceChance();
}

SubstitutionOptions Small(uint64_t seed, uint64_t cache_items = 4) {
  return {.batch = 4, .cache_items = cache_items, .seed = seed};
}

// The test that our own policies have to pass, at the same seeds, and chances that are absurd.
TEST(Uniformity, PublishedOdsFails) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_LT(PlaceChanceOf(Ods(Small(seed), false)), 1e-6) << seed;
}

TEST(Uniformity, OdsThatMarksWhatItGaveStillFails) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_LT(PlaceChanceOf(Ods(Small(seed), true)), 1e-6) << seed;
}

TEST(Uniformity, QuiverFails) {
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_LT(PlaceChanceOf(Quiver(Small(seed))), 1e-6) << seed;
}

TEST(Uniformity, WithoutACacheTheyPass) {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    EXPECT_GT(PlaceChanceOf(Ods(Small(seed, 0), false)), 0.001);
    EXPECT_GT(PlaceChanceOf(Quiver(Small(seed, 0))), 0.001);
  }
}

TEST(Ods, AsPublishedSkipsItemsAndRepeatsOthers) {
  const std::vector<Item> items = Below(1000);
  Ods ods({.batch = 50, .cache_items = 200, .seed = 1}, false);
  ods.Epoch(items);
  const std::vector<Item> order = ods.Epoch(items);
  EXPECT_LT(std::set<Item>(order.begin(), order.end()).size(), 900U);
}

TEST(Ods, ThatMarksWhatItGaveIsExactlyOnce) {
  const std::vector<Item> items = Below(1000);
  Ods ods({.batch = 50, .cache_items = 200, .seed = 1}, true);
  for (int epoch = 0; epoch < 3; ++epoch) ExpectExactlyOnce(items, ods.Epoch(items));
}

TEST(Quiver, IsExactlyOnce) {
  const std::vector<Item> items = Below(1000);
  Quiver quiver({.batch = 50, .cache_items = 200, .seed = 1});
  for (int epoch = 0; epoch < 3; ++epoch) ExpectExactlyOnce(items, quiver.Epoch(items));
}

// Of N items, C stay: N - C misses in each epoch after the first.
TEST(FillOnceCache, HitsAsManyAsItHolds) {
  FillOnceCache cache(200);
  for (Item item = 0; item < 1000; ++item) EXPECT_FALSE(cache.Take(item));
  for (Item item = 999; item != 199; --item) EXPECT_FALSE(cache.Take(item));
  for (Item item = 0; item < 200; ++item) EXPECT_TRUE(cache.Take(item));
  EXPECT_EQ(cache.misses(), 1800U);
}

TEST(PublishedDsa, IsExactlyOnce) {
  TestFeed feed{.seed = 4};
  feed.jobs = {{.items = Below(300), .epochs = 2},
               {.items = Below(200), .join = 7, .stalls = 0.2},
               {.items = Below(100), .crash = 30}};
  PublishedDsa sampler({.universe = 300, .seed = 4});
  const auto orders = TestRun(sampler, feed).Go();
  for (size_t job = 0; job < feed.jobs.size(); ++job) {
    for (const auto& order : orders[job]) ExpectExactlyOnce(feed.jobs[job].items, order);
  }
}

// One job with 128 items in one chunk and one in the next: that one comes first in half of all epochs, not in 1 of 129.
TEST(PublishedDsa, FavoursItemsOfEmptyChunks) {
  int first = 0;
  constexpr int kRuns = 1000;
  for (uint64_t run = 0; run < kRuns; ++run) {
    PublishedDsa sampler({.universe = 129, .seed = run});
    const std::vector<Item> items = Below(129);
    sampler.Begin({.job = 0, .items = items});
    const int job = 0;
    Item pick = 0;
    sampler.Draw(std::span(&job, 1), std::span(&pick, 1));
    first += pick == 128 ? 1 : 0;
  }
  EXPECT_NEAR(first, kRuns / 2, 70);
}

}  // namespace
}  // namespace lockstep::sampling::baselines
