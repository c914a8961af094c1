#include "lockstep/sampling/nearest_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::sampling {
namespace {

// Sets, how many places are kept, slices, and where one goes on: all at random; against the sorted places.
TEST(NearestPlaces, FindsTheFirstFromAnywhereInSlices) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 500; ++i) {
    const uint64_t items = 1 + random() % 200, kept = 1 + random() % 100;
    NearestPlaces nearest(items, kept);
    for (uint64_t lap = 0; lap < 3; ++lap) {
      std::vector<uint64_t> places;
      while (places.size() < items) {
        const uint64_t place = random() % 5000;
        if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
      }
      std::vector<uint64_t> sorted = places;
      std::sort(sorted.begin(), sorted.end());
      uint64_t from = 0;
      for (int ask = 0; ask < 300; ++ask) {
        if (random() % 20 == 0) from = random() % (sorted.back() + 1);
        std::optional<uint64_t> found;
        while (!found) {
          uint64_t work = 1 + random() % 50;
          const uint64_t most = work;
          uint64_t looked = 0;
          found = nearest.Find({.number = lap}, from, [&](uint64_t at) { return ++looked, places.at(at); }, work);
          ASSERT_EQ(looked, most - work);
        }
        ASSERT_EQ(*found, *std::lower_bound(sorted.begin(), sorted.end(), from)) << i;
        from = *found == sorted.back() ? 0 : *found + 1;
      }
    }
  }
}

TEST(NearestPlaces, ASetThatFitsHasOnePassALap) {
  NearestPlaces nearest(100);
  uint64_t looked = 0, from = 0;
  for (int i = 0; i < 100; ++i) {
    uint64_t work = UINT64_MAX;
    const auto place_of = [&](uint64_t at) { return ++looked, at * 37 % 101; };
    from = *nearest.Find({}, from, place_of, work) + 1;
  }
  EXPECT_EQ(looked, 100U);
}

TEST(NearestPlaces, AreForSetsThatAreSmallBesideTheDataSet) {
  EXPECT_TRUE(NearestPlaces::IsCheaper(200'000'000, 64));
  EXPECT_TRUE(NearestPlaces::IsCheaper(1000, 1));
  EXPECT_FALSE(NearestPlaces::IsCheaper(1000, 100));
  EXPECT_FALSE(NearestPlaces::IsCheaper(1, 1));
  EXPECT_TRUE(NearestPlaces::IsCheaper(uint64_t{1} << 33, 1 << 22));
  EXPECT_FALSE(NearestPlaces::IsCheaper(uint64_t{1} << 33, uint64_t{1} << 31));  // 8,192 passes
}

}  // namespace
}  // namespace lockstep::sampling
