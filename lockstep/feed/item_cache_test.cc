#include "lockstep/feed/item_cache.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace lockstep::feed {
namespace {

struct Needs {
  std::map<uint64_t, uint64_t> next;  // by item
  uint64_t operator()(uint64_t item) const {
    const auto found = next.find(item);
    return found == next.end() ? ItemCache::kNever : found->second;
  }
};

Content Pixels() { return {std::make_shared<const prepare::Image>(), nullptr}; }

bool Keep(ItemCache& cache, uint64_t item, uint64_t bytes, uint64_t distance) {
  if (!cache.Reserve(bytes, distance)) return false;
  cache.Put(item, Form::kDecoded, Pixels(), bytes, bytes);
  return true;
}

TEST(ItemCache, WhatIsNeededLastGoesFirst) {
  Needs needs;
  ItemCache cache(30, [&](uint64_t item) { return needs(item); });
  needs.next = {{1, 5}, {2, 50}, {3, 20}};
  for (uint64_t item = 1; item <= 3; ++item) EXPECT_TRUE(Keep(cache, item, 10, needs(item)));
  EXPECT_TRUE(Keep(cache, 4, 10, 30));
  EXPECT_EQ(cache.Find(2, Form::kDecoded).image, nullptr);
  EXPECT_NE(cache.Find(1, Form::kDecoded).image, nullptr);
}

TEST(ItemCache, RefusesWhatIsNeededLaterThanAllItHas) {
  Needs needs;
  ItemCache cache(20, [&](uint64_t item) { return needs(item); });
  needs.next = {{1, 5}, {2, 6}};
  for (uint64_t item = 1; item <= 2; ++item) EXPECT_TRUE(Keep(cache, item, 10, needs(item)));
  EXPECT_FALSE(Keep(cache, 3, 10, 7));
  EXPECT_FALSE(Keep(cache, 3, 21, 0));  // larger than the budget: nothing is evicted for it
  EXPECT_EQ(cache.refused(), 2U);
  EXPECT_EQ(cache.totals(Form::kDecoded).items, 2U);
}

TEST(ItemCache, WhatSomebodyReadsStays) {
  Needs needs;
  ItemCache cache(10, [&](uint64_t item) { return needs(item); });
  ASSERT_TRUE(Keep(cache, 1, 10, ItemCache::kNever));
  const Content reading = cache.Find(1, Form::kDecoded);
  EXPECT_FALSE(Keep(cache, 2, 10, 0));
}

TEST(ItemCache, AllButWhatIsReadGoesForWhatMustHaveRoom) {
  ItemCache cache(100, [](uint64_t) { return 0; });  // everything is needed now
  for (uint64_t item = 0; item < 10; ++item) ASSERT_TRUE(Keep(cache, item, 10, 0));
  const Content reading = cache.Find(3, Form::kDecoded);
  EXPECT_FALSE(cache.Reserve(10, 0));
  EXPECT_TRUE(cache.ReserveOfAll(90));
  EXPECT_EQ(cache.used(), 100U);
  EXPECT_NE(cache.Find(3, Form::kDecoded).image, nullptr);
  EXPECT_FALSE(cache.ReserveOfAll(1));
  cache.Unreserve(90);
  EXPECT_FALSE(cache.ReserveOfAll(101));
  EXPECT_EQ(cache.totals(Form::kDecoded).items, 1U);  // nothing was evicted for what can't fit
}

TEST(ItemCache, OfWhatIsNeededEquallyLateAFormBeyondItsQuotaGoes) {
  ItemCache cache(10, [](uint64_t) { return ItemCache::kNever; });
  ASSERT_TRUE(cache.Reserve(10, ItemCache::kNever));
  cache.Put(1, Form::kEncoded, {nullptr, std::make_shared<const prepare::Buffer>()}, 10, 10);
  cache.SetQuota(Form::kEncoded, 10);
  EXPECT_FALSE(cache.HasQuota(Form::kEncoded, 1));
  EXPECT_FALSE(cache.Reserve(10, ItemCache::kNever));
  cache.SetQuota(Form::kEncoded, 9);
  EXPECT_TRUE(cache.Reserve(10, ItemCache::kNever));
}

TEST(ItemCache, TheBudgetHoldsAtEveryMoment) {
  std::mt19937_64 chance(7);
  ItemCache cache(100'000, [](uint64_t item) { return item % 97; });
  uint64_t kept = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t item = chance() % 500, bytes = 1 + chance() % (i % 100 == 0 ? 90'000 : 9'000);
    if (cache.Find(item, Form::kDecoded).image != nullptr) continue;
    kept += Keep(cache, item, bytes, item % 97) ? 1 : 0;
    ASSERT_LE(cache.used(), cache.budget());
    if (i % 10 == 0) cache.Drop(chance() % 500, Form::kDecoded);
  }
  EXPECT_LE(cache.peak(), cache.budget());
  EXPECT_GT(kept, 1000U);
}

TEST(ItemCache, TheSumsAreThoseOfTheEntries) {
  ItemCache cache(1000, [](uint64_t) { return ItemCache::kNever; });
  for (uint64_t item = 0; item < 10; ++item) ASSERT_TRUE(Keep(cache, item, 10 + item, 0));
  cache.Drop(0, Form::kDecoded);
  cache.Drop(5, Form::kDecoded);
  cache.Drop(5, Form::kDecoded);
  EXPECT_EQ(cache.used(), 145U - 10 - 15);  // sum of 10..19 is 145
  EXPECT_EQ(cache.totals(Form::kDecoded).items, 8U);
  EXPECT_EQ(cache.totals(Form::kDecoded).bytes, cache.used());
}

}  // namespace
}  // namespace lockstep::feed
