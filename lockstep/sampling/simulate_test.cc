// What feeds prepare, against the union of their sets: the figures of docs/models/feed.md.
#include "lockstep/sampling/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "lockstep/sampling/random.h"

namespace lockstep::sampling {
namespace {

using testing::HasSubstr;

ItemSet Choose(uint64_t size, uint64_t of, uint64_t seed) {
  std::vector<uint64_t> ids(of);
  std::iota(ids.begin(), ids.end(), uint64_t{0});
  Rng rng(seed);
  ShuffleFront(std::span(ids), size, rng);
  ids.resize(size);
  std::sort(ids.begin(), ids.end());
  std::vector<ItemRange> ranges;
  for (const uint64_t id : ids) ranges.push_back({id, id});
  return ItemSet(ranges);
}

// Joader's own case: four sets of n out of 4n/3.
std::vector<ItemSet> Overlapping(uint64_t n, uint64_t seed) {
  std::vector<ItemSet> sets;
  for (uint64_t job = 0; job < 4; ++job) sets.push_back(Choose(n, n * 4 / 3, Hash(seed, job, 77)));
  return sets;
}

std::vector<ItemSet> Nested(uint64_t n) {
  return {ItemSet::Below(n), ItemSet::Below(2 * n), ItemSet::Below(3 * n), ItemSet::Below(4 * n)};
}

double Ratio(const std::vector<ItemSet>& sets, const SimulateOptions& options) {
  const auto feed = Simulate(sets, options);
  EXPECT_TRUE(feed.ok()) << feed.status();
  return static_cast<double>(feed->loads) / static_cast<double>(feed->union_items);
}

// Of five seeds: a single order may be lucky.
double MeanRatio(const std::vector<ItemSet>& sets, SimulateOptions options) {
  double sum = 0;
  for (options.seed = 1; options.seed <= 5; ++options.seed) sum += Ratio(sets, options);
  return sum / 5;
}

TEST(Simulate, IdenticalSetsArePreparedOnce) {
  for (const uint64_t n : {100U, 4000U}) {
    const std::vector<ItemSet> sets(4, ItemSet::Below(n));
    for (const uint64_t cache : {0U, 64U}) EXPECT_LE(Ratio(sets, {.cache_items = cache}), 1.01);
    EXPECT_LE(Ratio(sets, {.policy = Policy::kDependent}), 1.01);
  }
}

TEST(Simulate, OverlappingSetsNeedASmallCache) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (const uint64_t cache : {64U, 256U}) {
      EXPECT_LE(Ratio(Overlapping(4000, seed), {.cache_items = cache, .seed = seed}), 1.05);
      EXPECT_LE(Ratio(Overlapping(1000, seed), {.cache_items = cache, .seed = seed}), 1.05);
    }
    EXPECT_LE(Ratio(Overlapping(4000, seed), {.cache_items = 0, .seed = seed}), 1.4);
  }
}

TEST(Simulate, NestedSets) {
  for (const uint64_t cache : {0U, 64U, 256U}) EXPECT_LE(Ratio(Nested(1000), {.cache_items = cache}), 1.6) << cache;
}

TEST(Simulate, StaggeredSets) {
  const std::vector<double> start{0, 0.25, 0.5, 0.75};
  for (const uint64_t n : {1000U, 4000U, 4001U, 4002U, 4003U}) {
    const std::vector<ItemSet> sets(4, ItemSet::Below(n));
    EXPECT_LE(Ratio(sets, {.start = start}), 1.75) << n;
    EXPECT_LE(Ratio(sets, {.cache_items = (n + 3) / 4, .start = start}), 1.5) << n;
  }
}

// Each policy's loads are recounted from its orders: without a cache, what differs within a step.
TEST(Simulate, LoadsAreWhatTheOrdersCost) {
  const std::vector<ItemSet> sets = Overlapping(300, 5);
  for (const Policy policy : kAllPolicies) {
    const auto feed = Simulate(sets, {.policy = policy});
    ASSERT_TRUE(feed.ok()) << feed.status();
    uint64_t loads = 0;
    for (size_t step = 0; step < 300; ++step) {
      std::set<uint64_t> taken;
      for (const SimulatedJob& job : feed->jobs) taken.insert(job.order[step]);
      loads += taken.size();
    }
    EXPECT_EQ(feed->loads, loads) << NameOf(policy);
    const auto cached = Simulate(sets, {.policy = policy, .cache_items = 400});
    EXPECT_EQ(cached->loads, cached->union_items) << NameOf(policy);
  }
}

TEST(Simulate, AutoIsNeverMuchWorseThanTheBest) {
  for (const uint64_t cache : {0U, 16U, 256U, 1024U}) {
    for (const auto& sets : {Overlapping(600, 1), Nested(200)}) {
      double best = 1e9;
      for (const Policy policy : kAllPolicies)
        best = std::min(best, MeanRatio(sets, {.policy = policy, .cache_items = cache}));
      EXPECT_LE(MeanRatio(sets, {.cache_items = cache}), best * 1.02) << cache;
    }
  }
}

TEST(Simulate, SameSeedSameOrders) {
  const SimulateOptions options{.cache_items = 10, .seed = 4, .start = {0, 0.1, 0.2, 0.3}, .rates = {1, 2, 0.5, 1}};
  const auto once = Simulate(Overlapping(90, 1), options), again = Simulate(Overlapping(90, 1), options);
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(ToJson(*once, true), ToJson(*again, true));
  for (size_t job = 0; job < 4; ++job) EXPECT_EQ(once->jobs[job].order.size(), 90U);
  EXPECT_EQ(once->jobs[1].first_step, 9);
  EXPECT_EQ(once->jobs[1].last_step, 9 + 44);
}

TEST(Simulate, EndsWhenItIsStopped) {
  std::stop_source stop;
  stop.request_stop();
  const auto feed = Simulate(Overlapping(90, 1), {.policy = Policy::kCommon, .stop = stop.get_token()});
  ASSERT_TRUE(feed.ok());
  EXPECT_EQ(feed->taken, 0U);
}

TEST(Simulate, RefusesWhatItCannotDo) {
  const std::vector<ItemSet> sets(2, ItemSet::Below(10));
  EXPECT_THAT(Message(Simulate(sets, {.start = {0}}).status()),
              HasSubstr("--start: expected one number for each of 2"));
  EXPECT_THAT(Message(Simulate(sets, {.start = {0, -1}}).status()), HasSubstr("--start -1"));
  EXPECT_THAT(Message(Simulate(sets, {.rates = {1, 0}}).status()), HasSubstr("--rates 0"));
  const std::vector<ItemSet> huge(2, ItemSet::Below(uint64_t{1} << 62));
  EXPECT_THAT(Message(Simulate(huge, {}).status()), HasSubstr("the most that can be simulated"));
}

}  // namespace
}  // namespace lockstep::sampling
