// Every policy, twenty seeds: places × items, successive pairs, epoch against epoch, of jobs that join, pause, die and
// wait for slow items.
#include <gtest/gtest.h>

#include "lockstep/sampling/sampler.h"
#include "lockstep/sampling/test_feed.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

constexpr uint64_t kSeeds = 20, kRuns = 1500;
constexpr double kLeastChance = 0.001;
constexpr double kTests = 9;  // three jobs: places × items, pairs, epoch against epoch

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
  feed.jobs = {{.items = Range(0, 5), .epochs = 2},
               {.items = Range(3, 10), .epochs = 2},
               {.items = {1, 2, 4, 5, 8, 9, 11}, .epochs = 2}};
  for (TestJob& job : feed.jobs) {
    job.join = static_cast<int64_t>(rng.Below(12));
    if (rng.Below(2) == 0) job.crash = job.join + 2 + static_cast<int64_t>(rng.Below(12));
    if (rng.Below(2) == 0) job.stalls = 0.2;
  }
  feed.jobs.push_back({.items = Range(0, 11),
                       .join = static_cast<int64_t>(rng.Below(6)),
                       .leave = 4 + static_cast<int64_t>(rng.Below(12))});
  return feed;
}

using Counts = std::vector<OrderCounts>;

void Count(Policy policy, uint64_t seed, Counts& counts, Counts& together) {
  for (uint64_t run = 0; run < kRuns; ++run) {
    const TestFeed feed = Eventful(Hash(seed, run));
    const auto sampler = MakeSampler(policy, {.universe = 12, .seed = Hash(feed.seed, 3)});
    const auto orders = TestRun(*sampler, feed).Go();
    for (size_t job = 0; job < counts.size(); ++job) {
      const std::vector<Item>& items = feed.jobs[job].items;
      for (const auto& order : orders[job]) ExpectExactlyOnce(items, order);
      const auto first = Relative(items, orders[job][0]), second = Relative(items, orders[job][1]);
      counts[job].Add(first, second);
      together[job].Add(first, second);
    }
  }
}

void ExpectUniform(const Counts& counts, double least, const std::string& which) {
  for (size_t job = 0; job < counts.size(); ++job) {
    EXPECT_GT(counts[job].PlaceChance(), least) << which << " job " << job;
    EXPECT_GT(counts[job].PairChance(), least) << which << " job " << job;
    EXPECT_GT(counts[job].EpochChance(), least) << which << " job " << job;
  }
}

class Uniformity : public testing::TestWithParam<Policy> {};

// All seeds together, where a small bias adds up; and each of them. A policy that is uniform fails one of its nine or
// hundred and eighty tests with a chance of 0.001 (Bonferroni).
TEST_P(Uniformity, HoldsWhateverHappensToJobs) {
  const Counts none{OrderCounts(6), OrderCounts(8), OrderCounts(7)};
  Counts together = none;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Counts counts = none;
    Count(GetParam(), seed, counts, together);
    ExpectUniform(counts, kLeastChance / (kSeeds * kTests), "seed " + std::to_string(seed));
  }
  ExpectUniform(together, kLeastChance / kTests, "all seeds");
}

// A job that begins where the leader is, by the clock or by what it has got; item 2 takes eight steps. Both have eight
// items, and the second joins at any time.
double ChanceOfJoiner(bool by_clock) {
  const std::vector<Item> items = Range(0, 7);
  OrderCounts counts(items.size());
  for (uint64_t run = 0; run < 4000; ++run) {
    const auto sampler = MakeSampler(Policy::kCommon, {.universe = 8, .seed = run});
    sampler->Begin({.job = 0, .items = items});
    const auto join = static_cast<int64_t>(Rng(Hash(run, 1)).Below(15));
    const int leader = 0, joiner = 1;
    Item pick = 0;
    int64_t got = 0;
    for (int64_t now = 0, ready = 0; now < join && got < 8; ++now) {
      if (now < ready) continue;
      sampler->Draw(std::span(&leader, 1), std::span(&pick, 1));
      ready = now + (pick == 2 ? 8 : 1);
      ++got;
    }
    sampler->Begin({.job = 1, .items = items, .now = by_clock ? join : got});
    std::vector<uint32_t> order;
    while (sampler->Left(1) > 0) {
      sampler->Draw(std::span(&joiner, 1), std::span(&pick, 1));
      order.push_back(pick);
    }
    counts.AddPlaces(order);
  }
  return counts.PlaceChance();
}

TEST(Joiner, IsUniformIfItFollowsTheClockAndNotIfItFollowsProgress) {
  EXPECT_GT(ChanceOfJoiner(true), kLeastChance);
  EXPECT_LT(ChanceOfJoiner(false), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(Policies, Uniformity, testing::ValuesIn(kAllPolicies),
                         [](const auto& tested) { return std::string(NameOf(tested.param)); });

}  // namespace
}  // namespace lockstep::sampling
