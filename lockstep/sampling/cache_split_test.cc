// The split that is chosen, against every other of a grid, in a machine that is simulated sample by sample and knows
// nothing of the formula.
#include "lockstep/sampling/cache_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lockstep/sampling/baselines/mdp.h"

namespace lockstep::sampling {
namespace {

using testing::HasSubstr;

struct Profile {
  std::string name;
  FeedMachine machine;
  FeedData data;
  double cache = 0;
};

FeedData Images(double uses) {
  return {.samples = 1.3e6,
          .encoded_bytes = 110e3,
          .decoded_bytes = 562e3,
          .augmented_bytes = 602e3,
          .decode_s = 1e-3,
          .augment_s = 0.3e-3,
          .uses = uses};
}

// Slow CPUs with a large cache; slow storage; a remote cache behind a narrow network; fast everything but PCIe; a cache
// that holds little.
std::vector<Profile> Profiles() {
  std::vector<Profile> profiles{{"few cores", {8, 2e9, 3e9, 20e9, 12e9, 20000}, Images(4), 400e9},
                                {"slow storage", {96, 0.2e9, 1.25e9, 40e9, 24e9, 40000}, Images(4), 100e9},
                                {"remote cache", {32, 1e9, 3e9, 10e9, 12e9, 30000}, Images(4), 600e9},
                                {"fast node", {192, 8e9, 25e9, 60e9, 6e9, 60000}, Images(8), 300e9},
                                {"small cache", {24, 0.6e9, 3e9, 20e9, 12e9, 15000}, Images(1), 30e9}};
  profiles[2].data.remote_cache = true;
  return profiles;
}

// Samples one after the other through CPU, disk, network and so on: each serves one at a time, in order, for as long as
// a sample of its form takes; at most `kWindow` are under way. Returns samples a second.
double Simulated(const Profile& profile, const Shares& shares) {
  constexpr size_t kWindow = 256, kSamples = 4000;
  const auto costs = CostTable(profile.machine, profile.data);
  constexpr Resource kOrder[] = {kStorage, kCache, kNetwork, kCpu, kPcie, kGpu};
  std::array<double, kResources> free{};
  std::deque<double> under_way;
  double end = 0;
  for (size_t sample = 0; sample < kSamples; ++sample) {
    double now = 0;
    if (under_way.size() == kWindow) {
      now = under_way.front();
      under_way.pop_front();
    }
    double at = std::fmod(static_cast<double>(sample) * 0.6180339887498949, 1.0);  // spread evenly
    size_t form = 0;
    while (form + 1 < kForms && at >= shares[form]) at -= shares[form++];
    for (const Resource resource : kOrder) {
      now = std::max(now, free[resource]) + costs[form][resource];
      free[resource] = now;
    }
    under_way.push_back(now);
    end = now;
  }
  return static_cast<double>(kSamples) / end;
}

// Shares that `percent` of the cache for each form would hold.
Shares Held(const Profile& profile, const std::array<double, kForms>& percent) {
  const auto bytes = CacheBytes(profile.data);
  Shares shares{};
  double left = 1;
  for (const Form form : {kAugmented, kDecoded, kEncoded}) {
    shares[form] = std::min(left, percent[form] / 100 * profile.cache / bytes[form] / profile.data.samples);
    left -= shares[form];
  }
  shares[kStored] = left;
  return shares;
}

double BestOfSweep(const Profile& profile) {
  double best = 0;
  for (int encoded = 0; encoded <= 100; encoded += 2) {
    for (int decoded = 0; encoded + decoded <= 100; decoded += 2) {
      const double augmented = 100 - encoded - decoded;
      const Shares shares = Held(profile, {0, static_cast<double>(encoded), static_cast<double>(decoded), augmented});
      best = std::max(best, Simulated(profile, shares));
    }
  }
  return best;
}

TEST(BestSplit, IsWithinFivePercentOfEverySweep) {
  for (const Profile& profile : Profiles()) {
    const CacheSplit split = BestSplit(profile.machine, profile.data, profile.cache);
    const double simulated = Simulated(profile, split.shares), sweep = BestOfSweep(profile);
    EXPECT_GE(simulated, 0.95 * sweep) << profile.name;
    EXPECT_NEAR(simulated / split.rate, 1, 0.04) << profile.name;
    RecordProperty(profile.name, std::to_string(simulated / sweep));
  }
}

// The published model prefers what is fast alone; where resources are shared that is more than a tenth off.
TEST(BestSplit, BeatsThePublishedModelByMoreThanATenthSomewhere) {
  double most = 0;
  for (const Profile& profile : Profiles()) {
    const double own = Simulated(profile, BestSplit(profile.machine, profile.data, profile.cache).shares);
    const double published = Simulated(profile, baselines::MdpShares(profile.machine, profile.data, profile.cache));
    EXPECT_GE(own, 0.98 * published) << profile.name;
    most = std::max(most, own / published);
    RecordProperty(profile.name, std::to_string(own / published));
  }
  EXPECT_GT(most, 1.1);
}

TEST(BestSplit, FitsIntoTheCacheAndOnlyGrowsWithIt) {
  for (const Profile& profile : Profiles()) {
    double last = 0;
    for (double cache = 0; cache < 3e12; cache += 50e9) {
      const CacheSplit split = BestSplit(profile.machine, profile.data, cache);
      const auto bytes = CacheBytes(profile.data);
      double used = 0;
      for (size_t form = 0; form < kForms; ++form) used += split.shares[form] * bytes[form] * profile.data.samples;
      EXPECT_LE(used, cache * (1 + 1e-6) + 1);
      EXPECT_NEAR(std::accumulate(split.shares.begin(), split.shares.end(), 0.0), 1, 1e-6);
      EXPECT_GE(split.rate, last * (1 - 1e-9)) << profile.name << " " << cache;
      last = split.rate;
    }
  }
}

// Four jobs in step have a sample read and decoded once and cut four times: (430 / 4 + 70) / 2 us of two cores each.
TEST(BestSplit, CountsAReadAndADecodeOnceForAllJobsInStep) {
  const FeedMachine machine{.cores = 2};
  FeedData data{.samples = 1e6,
                .encoded_bytes = 57e3,
                .decoded_bytes = 342e3,
                .augmented_bytes = 342e3,
                .decode_s = 0.43e-3,
                .augment_s = 0.07e-3};
  EXPECT_NEAR(BestSplit(machine, data, 0).rate, 4000, 1);
  data.shared = 4;
  EXPECT_NEAR(BestSplit(machine, data, 0).rate, 11'268, 1);
  const FeedMachine slow{.cores = 2, .storage_bytes = 57e6, .network_bytes = 114e6};
  EXPECT_NEAR(BestSplit(slow, data, 0).rate, 4000, 1);  // of 1,000 files a second
  data.read_s = 4;
  const FormCosts costs = CostTable(slow, data);
  EXPECT_NEAR(costs[kStored][kCpu] - costs[kEncoded][kCpu], 0.5, 1e-9);
  EXPECT_NEAR(costs[kEncoded][kCpu] - costs[kDecoded][kCpu], 0.43e-3 / 8, 1e-12);
  EXPECT_NEAR(costs[kStored][kNetwork], 57e3 / 114e6 / 4, 1e-12);
}

// Shares of nothing are 0: they were -0.0 and 2e-15 of a hundred.
TEST(BestSplit, HasNoShareThatIsAlmostNothing) {
  for (const Profile& profile : Profiles()) {
    for (double cache = 0; cache < 1e12; cache += 7.7e9) {
      const Json report = SplitReport(profile.machine, profile.data, cache);
      for (const char* split : {"split", "published_mdp"})
        for (const char* form : {"stored_pct", "encoded_pct", "decoded_pct", "augmented_pct"}) {
          const double percent = report[split][form].get<double>();
          EXPECT_FALSE(std::signbit(percent)) << profile.name << cache << form;
          EXPECT_TRUE(percent == 0 || percent > 1e-11) << profile.name << cache << form << percent;
        }
    }
  }
}

// Without a cache: storage alone. 0.2e9 / 110e3 = 1818 samples/s.
TEST(BestSplit, WithoutACacheIsTheSlowestResource) {
  const Profile profile = Profiles()[1];
  const CacheSplit split = BestSplit(profile.machine, profile.data, 0);
  EXPECT_NEAR(split.rate, 1818.18, 0.01);
  EXPECT_EQ(split.bottleneck, kStorage);
  EXPECT_EQ(split.shares[kStored], 1);
}

double& CapacityOf(FeedMachine& machine, size_t resource) {
  double* const capacities[kResources] = {&machine.cores,       &machine.storage_bytes, &machine.network_bytes,
                                          &machine.cache_bytes, &machine.pcie_bytes,    &machine.gpu_samples};
  return *capacities[resource];
}

// Of each resource: how much the rate grows with 1 % more of it.
std::array<double, kResources> Gains(const Profile& profile) {
  const double rate = BestSplit(profile.machine, profile.data, profile.cache).rate;
  std::array<double, kResources> gains{};
  for (size_t resource = 0; resource < kResources; ++resource) {
    FeedMachine more = profile.machine;
    CapacityOf(more, resource) *= 1.01;
    gains[resource] = BestSplit(more, profile.data, profile.cache).rate / rate - 1;
  }
  return gains;
}

// Twelve thousand images a second is all that the GPUs take in; the cache need not be full for that, and what it then
// leaves to the storage keeps that as busy.
TEST(BestSplit, ItsBottleneckIsWhatMoreOfRaisesTheRate) {
  std::vector<Profile> profiles{{"gpus",
                                 {.cores = 32, .storage_bytes = 0.5e9, .gpu_samples = 12000},
                                 {.samples = 1.28e6,
                                  .encoded_bytes = 110e3,
                                  .decoded_bytes = 660e3,
                                  .augmented_bytes = 660e3,
                                  .decode_s = 1e-3,
                                  .augment_s = 0.3e-3,
                                  .uses = 4},
                                 100e9}};
  EXPECT_EQ(BestSplit(profiles[0].machine, profiles[0].data, profiles[0].cache).bottleneck, kGpu);
  for (Profile profile : Profiles())
    for (const double cache : {0.0, 0.1, 0.5, 1.0, 2.0, 10.0}) {
      profiles.push_back(profile);
      profiles.back().cache *= cache;
    }
  for (const Profile& profile : profiles) {
    const Resource named = BestSplit(profile.machine, profile.data, profile.cache).bottleneck;
    const auto gains = Gains(profile);
    EXPECT_GT(gains[named], 1e-6) << profile.name << " " << profile.cache << " " << NameOf(named);
    EXPECT_GE(gains[named], *std::max_element(gains.begin(), gains.end()) - 1e-9) << profile.name << profile.cache;
  }
}

// Decoded samples are small here and augmented ones large, of which the published model keeps all: ten times the cache.
TEST(SplitReport, ComparesWithWhatFits) {
  const FeedMachine machine{.cores = 24, .storage_bytes = 1.08103e9};
  const FeedData data{.samples = 1'426'516,
                      .encoded_bytes = 554'765,
                      .decoded_bytes = 16'988,
                      .augmented_bytes = 81'754,
                      .decode_s = 4.108e-3,
                      .augment_s = 0.3731e-3,
                      .uses = 17,
                      .remote_cache = true};
  for (const double cache : {0.0, 1e9, 30e9, 86.128e9, 200e9}) {
    const Json report = SplitReport(machine, data, cache);
    const Json& published = report["published_mdp"];
    const double kept = published["encoded_pct"].get<double>() * data.encoded_bytes +
                        published["decoded_pct"].get<double>() * data.decoded_bytes +
                        published["augmented_pct"].get<double>() * (data.decoded_bytes + data.augmented_bytes);
    EXPECT_LE(kept / 100 * data.samples, cache * (1 + 1e-9)) << cache;
    EXPECT_GE(report["gain_over_published"].get<double>(), -1e-9) << cache;
  }
}

TEST(Validate, NamesWhatIsWrong) {
  Profile profile = Profiles()[0];
  EXPECT_TRUE(Validate(profile.machine, profile.data).ok());
  profile.machine.cores = 0;
  EXPECT_THAT(Message(Validate(profile.machine, profile.data)), HasSubstr("cores: expected a number above 0, found 0"));
}

}  // namespace
}  // namespace lockstep::sampling
