// Exactly once whatever happens, for any number of jobs; and how much each policy shares, by formula.
#include "lockstep/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lockstep/sampling/coupling.h"
#include "lockstep/sampling/test_feed.h"
#include "lockstep/sampling/test_uniformity.h"

namespace lockstep::sampling {
namespace {

std::vector<Item> Range(Item first, Item last) {
  std::vector<Item> items;
  for (Item item = first; item <= last; ++item) items.push_back(item);
  return items;
}

std::vector<Item> RandomSubset(Item universe, size_t size, Rng& rng) {
  std::vector<Item> items = Range(0, universe - 1);
  ShuffleFront(std::span(items), size, rng);
  items.resize(size);
  std::sort(items.begin(), items.end());
  return items;
}

class EveryPolicy : public testing::TestWithParam<Policy> {};

void ExpectEachOnce(Policy policy, const TestFeed& feed, uint64_t universe) {
  const auto sampler = MakeSampler(policy, {.universe = universe, .seed = feed.seed});
  const auto orders = TestRun(*sampler, feed).Go();
  for (size_t job = 0; job < feed.jobs.size(); ++job) {
    ASSERT_EQ(orders[job].size(), static_cast<size_t>(feed.jobs[job].epochs));
    for (const auto& order : orders[job]) ExpectExactlyOnce(feed.jobs[job].items, order);
  }
}

TEST_P(EveryPolicy, GivesEachItemOnceToEachOfManyJobs) {
  for (const size_t jobs : {1U, 2U, 70U, 130U}) {
    Rng rng(jobs);
    TestFeed feed{.seed = jobs};
    for (size_t job = 0; job < jobs; ++job) {
      feed.jobs.push_back({.items = RandomSubset(200, 1 + rng.Below(200), rng),
                           .join = static_cast<int64_t>(rng.Below(100)),
                           .epochs = 1 + static_cast<int>(rng.Below(2)),
                           .crash = static_cast<int64_t>(rng.Below(300)),
                           .stalls = rng.Below(2) == 0 ? 0.3 : 0});
    }
    ExpectEachOnce(GetParam(), feed, 200);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(kAllPolicies),
                         [](const auto& tested) { return std::string(NameOf(tested.param)); });

// Of `runs` feeds of two jobs that begin together: in how many steps both take the same item, on average.
double SharedSteps(Policy policy, const std::vector<Item>& a, const std::vector<Item>& b, int runs) {
  int64_t shared = 0;
  for (int run = 0; run < runs; ++run) {
    const auto sampler = MakeSampler(
        policy, {.universe = std::max(a.back(), b.back()) + uint64_t{1}, .seed = static_cast<uint64_t>(run)});
    sampler->Begin({.job = 0, .items = a});
    sampler->Begin({.job = 1, .items = b});
    const std::vector<int> both{0, 1};
    std::vector<Item> picks(2);
    for (size_t step = 0; step < std::min(a.size(), b.size()); ++step) {
      sampler->Draw(both, picks);
      shared += picks[0] == picks[1] ? 1 : 0;
    }
  }
  return static_cast<double>(shared) / runs;
}

// The first step: |I| / max(|A|, |B|) = 30 / 60 (docs/models/feed.md); 4 standard deviations.
TEST(Dependent, SharesAStepAsOftenAsUniformLawsAllow) {
  int shared = 0;
  constexpr int kRuns = 20000;
  for (uint64_t run = 0; run < kRuns; ++run) {
    const auto sampler = MakeSampler(Policy::kDependent, {.universe = 70, .seed = run});
    sampler->Begin({.job = 0, .items = Range(0, 39)});
    sampler->Begin({.job = 1, .items = Range(10, 69)});
    const std::vector<int> both{0, 1};
    std::vector<Item> picks(2);
    sampler->Draw(both, picks);
    shared += picks[0] == picks[1] ? 1 : 0;
  }
  EXPECT_NEAR(shared, kRuns * 0.5, 4 * std::sqrt(kRuns * 0.25));
}

// a - (b - a)(H_b - H_{b-a}) shared steps of nested sets of a = 500 and b = 1000: 153.68.
TEST(Dependent, SharesOfNestedSetsWhatTheFormulaSays) {
  double harmonic = 0;
  for (int k = 501; k <= 1000; ++k) harmonic += 1.0 / k;
  EXPECT_NEAR(500 - 500 * harmonic, 153.68, 0.01);
  EXPECT_NEAR(SharedSteps(Policy::kDependent, Range(0, 499), Range(0, 999), 200), 153.68, 3);
}

// No uniform scheme shares more of nested sets than a²/b = 250 of a = 500, b = 1000; the coupled orders share that.
TEST(Aligned, SharesOfNestedSetsAllThatIsPossible) {
  EXPECT_NEAR(SharedSteps(Policy::kAligned, Range(0, 499), Range(0, 999), 200), 250, 4);
}

// Sets of one size: every common item, in the same step.
TEST(Aligned, SharesAllCommonItemsOfSetsOfOneSize) {
  EXPECT_EQ(SharedSteps(Policy::kAligned, Range(0, 99), Range(25, 124), 20), 75);
}

// The chances are those of counting all orders: marks at the first `part` places.
TEST(Hypergeometric, SumsToOneAndHasItsMean) {
  const Hypergeometric law{.places = 30, .marked = 12, .part = 20};
  EXPECT_EQ(law.Least(), 2);
  EXPECT_EQ(law.Most(), 12);
  double sum = 0, mean = 0;
  int64_t k = law.Least();
  for (const double chance : law.Chances()) {
    sum += chance;
    mean += chance * static_cast<double>(k++);
  }
  EXPECT_NEAR(sum, 1, 1e-12);
  EXPECT_NEAR(mean, 12 * 20 / 30.0, 1e-12);
}

TEST(SameQuantile, HasTheOtherLaw) {
  const Hypergeometric from{.places = 10, .marked = 4, .part = 6}, to{.places = 8, .marked = 4, .part = 5};
  const std::vector<double> source = from.Chances(), target = to.Chances();
  std::vector<double> counts(target.size());
  Rng rng(1);
  constexpr int kRuns = 100000;
  for (int run = 0; run < kRuns; ++run) {
    double at = rng.Uniform();
    int64_t value = from.Least();
    while (value < from.Most() && at >= source[static_cast<size_t>(value - from.Least())])
      at -= source[static_cast<size_t>(value++ - from.Least())];
    ++counts[static_cast<size_t>(SameQuantile(from, value, to, rng) - to.Least())];
  }
  double statistic = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    const double expected = target[k] * kRuns;
    statistic += (counts[k] - expected) * (counts[k] - expected) / expected;
  }
  EXPECT_GT(ChiSquareTail(statistic, static_cast<double>(counts.size() - 1)), 0.001);
}

}  // namespace
}  // namespace lockstep::sampling
