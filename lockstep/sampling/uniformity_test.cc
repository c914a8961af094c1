// Every policy, twenty seeds: places × items, successive pairs, epoch against epoch, of jobs that join, pause, die and
// wait for slow items.
#include <gtest/gtest.h>

#include "lockstep/sampling/sampler.h"
#include "lockstep/sampling/test_feed.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

constexpr int kSeeds = 20;
constexpr double kLeastChance = 0.001;

std::vector<Item> Range(Item first, Item last) {
  std::vector<Item> items;
  for (Item item = first; item <= last; ++item) items.push_back(item);
  return items;
}

std::vector<uint32_t> Relative(const std::vector<Item>& items, const std::vector<Item>& order) {
  std::vector<uint32_t> relative;
  for (const Item item : order)
    relative.push_back(static_cast<uint32_t>(std::lower_bound(items.begin(), items.end(), item) - items.begin()));
  return relative;
}

// Overlapping sets of 6, 8 and 7 of 12 items; items 2, 5 and 9 are slow. What happens, and when, is drawn anew.
TestFeed Eventful(uint64_t seed) {
  Rng rng(Hash(seed, 2));
  TestFeed feed{.slow = std::vector<bool>(12), .seed = seed};
  for (const Item item : {2U, 5U, 9U}) feed.slow[item] = true;
  feed.jobs = {{.items = Range(0, 5), .epochs = 2}, {.items = Range(3, 10), .epochs = 2}, {.items = {1, 2, 4, 5, 8, 9, 11}, .epochs = 2}};
  for (TestJob& job : feed.jobs) {
    job.join = static_cast<int64_t>(rng.Below(12));
    if (rng.Below(2) == 0) job.crash = job.join + 2 + static_cast<int64_t>(rng.Below(12));
    if (rng.Below(2) == 0) job.stalls = 0.2;
  }
  feed.jobs.push_back({.items = Range(0, 11), .join = static_cast<int64_t>(rng.Below(6)), .leave = 4 + static_cast<int64_t>(rng.Below(12))});
  return feed;
}

class Uniformity : public testing::TestWithParam<Policy> {};

TEST_P(Uniformity, HoldsWhateverHappensToJobs) {
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::vector<OrderCounts> counts{OrderCounts(6), OrderCounts(8), OrderCounts(7)};
    for (uint64_t run = 0; run < 1500; ++run) {
      const TestFeed feed = Eventful(Hash(static_cast<uint64_t>(seed), run));
      const auto sampler = MakeSampler(GetParam(), {.universe = 12, .seed = Hash(feed.seed, 3)});
      const auto orders = TestRun(*sampler, feed).Go();
      for (size_t job = 0; job < counts.size(); ++job) {
        const std::vector<Item>& items = feed.jobs[job].items;
        for (const auto& order : orders[job]) ExpectExactlyOnce(items, order);
        counts[job].Add(Relative(items, orders[job][0]), Relative(items, orders[job][1]));
      }
    }
    for (size_t job = 0; job < counts.size(); ++job) {
      EXPECT_GT(counts[job].PlaceChance(), kLeastChance) << NameOf(GetParam()) << " seed " << seed << " job " << job;
      EXPECT_GT(counts[job].PairChance(), kLeastChance) << NameOf(GetParam()) << " seed " << seed << " job " << job;
      EXPECT_GT(counts[job].EpochChance(), kLeastChance) << NameOf(GetParam()) << " seed " << seed << " job " << job;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Uniformity, testing::ValuesIn(kAllPolicies),
                         [](const auto& tested) { return std::string(NameOf(tested.param)); });

}  // namespace
}  // namespace lockstep::sampling
