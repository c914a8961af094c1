#include "lockstep/cost/standby.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <random>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"
#include "lockstep/cost/chance.h"

namespace lockstep::cost {
namespace {

using testing::HasSubstr;

StandbySpec Published(int64_t machines) {
  return ReadStandbySpec(fmt::format("{}/standbys/byterobust-{}.toml", LOCKSTEP_PRESETS, machines)).value();
}

// Published (ByteRobust, SOSP'25, Table 5): 2, 2, 3, 4 standbys. Formula: least n with P(Binomial(m, p) <= n) >= 0.99.
// The paper does not state p; these four say that it is 0.1165 % to 0.1250 %.
TEST(Standbys, PublishedTable) {
  const auto table = [](double rate) {
    std::vector<int64_t> counts;
    for (const int64_t machines : {128, 256, 512, 1024}) counts.push_back(StandbysPerDay(machines, rate, 0.99));
    return counts;
  };
  const std::vector<int64_t> published{2, 2, 3, 4};
  for (const double rate : {0.001165, 0.0012, 0.00125}) EXPECT_EQ(table(rate), published) << rate;
  EXPECT_EQ(table(0.00116), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(table(0.00126), (std::vector<int64_t>{2, 2, 3, 5}));
  for (const int64_t machines : {128, 256, 512, 1024}) {
    const StandbySpec spec = Published(machines);
    ASSERT_TRUE(spec.Validate().ok()) << machines;
    EXPECT_EQ((*StandbyReport(spec))["catastrophe"]["not_covered"],
              32 - StandbysPerDay(machines, spec.daily_rate, 0.99));
  }
}

double Ratio(const StandbySpec& spec, Strategy slow, Strategy fast) {
  const int64_t pool = StandbysPerDay(spec.machines, spec.daily_rate, spec.quantile);
  return WeightedSchedulingTime(spec, slow, pool).value / WeightedSchedulingTime(spec, fast, pool).value;
}

// Published: 10.87x, 5.36x, 5.19 %. Met by construction: the times that are not published follow from these ratios.
TEST(SchedulingTime, PublishedRatiosAtEachSize) {
  for (const int64_t machines : {128, 256, 512, 1024}) {
    const StandbySpec spec = Published(machines);
    EXPECT_NEAR(Ratio(spec, Strategy::kRequeue, Strategy::kStandby), 10.87, 0.005) << machines;
    EXPECT_NEAR(Ratio(spec, Strategy::kReschedule, Strategy::kStandby), 5.36, 0.005) << machines;
    EXPECT_NEAR(100 * (Ratio(spec, Strategy::kStandby, Strategy::kOracle) - 1), 5.19, 0.005) << machines;
  }
}

// A prediction: with reschedules that take as long for 28 machines as for one, 5.36x leaves r = 0.99 x 5.36 /
// (1 - 0.01 x 5.36) times the oracle's time, and a standby 1 % of (r - 1) above it: 4.61 %, where 5.19 % is published.
TEST(SchedulingTime, WhatTheCatastropheCosts) {
  StandbySpec spec = Published(1024);
  const double r = 0.99 * 5.36 / (1 - 0.01 * 5.36);
  spec.times = {{1}, {r}, {0}, std::nullopt};
  EXPECT_NEAR(Ratio(spec, Strategy::kReschedule, Strategy::kStandby), 5.36, 1e-9);
  EXPECT_NEAR(Ratio(spec, Strategy::kStandby, Strategy::kOracle) - 1, 0.01 * (r - 1), 1e-9);
  EXPECT_NEAR(Ratio(spec, Strategy::kStandby, Strategy::kOracle) - 1, 0.0461, 5e-5);
}

// A prediction: a restart in place (hot update, Table 7) keeps all machines, as an oracle does. With its times and
// 5.19 % a requeue is 10.49 times as long as a standby on average over the sizes: 3.5 % less than the 10.87 published.
TEST(SchedulingTime, HotUpdateAsTheOracle) {
  const std::pair<int64_t, double> hot_update[] = {{128, 46}, {256, 51}, {512, 54}, {1024, 65}};
  double mean = 0;
  for (const auto& [machines, seconds] : hot_update) {
    StandbySpec spec = Published(machines);
    const double scale = seconds / spec.times->standby.value;
    spec.times->standby.value = seconds;
    spec.times->reschedule.value *= scale;
    spec.times->reschedule_each.value *= scale;
    EXPECT_NEAR(100 * (Ratio(spec, Strategy::kStandby, Strategy::kOracle) - 1), 5.19, 0.005);
    mean += Ratio(spec, Strategy::kRequeue, Strategy::kStandby) / 4;
  }
  EXPECT_NEAR(mean, 10.49, 0.005);
}

// By hand: of 2 machines with p = 1/2, P(1) : P(2) = 2 : 1, so 0.99 (2 x 10 + 1 x 100) / 3 + 0.01 x 100 with a
// pool of 1: a catastrophe takes both, for there are no more, and one of them is rescheduled.
TEST(SchedulingTime, ByHand) {
  StandbySpec spec;
  spec.machines = 2;
  spec.daily_rate = 0.5;
  spec.catastrophe = 6;
  spec.times = {{10}, {100}, {5}, Seconds{1000}};
  ASSERT_EQ(StandbysPerDay(2, 0.5, 0.99), 2);
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kStandby, 2).value, 10, 1e-9);
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kStandby, 1).value, 0.99 * (2 * 10 + 100) / 3 + 0.01 * 100, 1e-9);
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kReschedule, 2).value, 0.99 * (2 * 100 + 105) / 3 + 0.01 * 105,
              1e-9);
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kRequeue, 2).value, 1000, 1e-9);
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kOracle, 2).value, 10, 1e-9);
}

TEST(Standbys, ACatastropheTakesNoMoreMachinesThanThereAre) {
  StandbySpec spec;
  spec.machines = 8;
  EXPECT_EQ((*StandbyReport(spec))["catastrophe"], ParseJson(R"({"machines": 8, "not_covered": 8})"));
  EXPECT_EQ((*StandbyReport(Published(1024)))["catastrophe"]["machines"], 32);
}

TEST(SchedulingTime, WithoutFailuresItIsThatOfOne) {
  StandbySpec spec = Published(128);
  spec.daily_rate = 0;
  EXPECT_NEAR(WeightedSchedulingTime(spec, Strategy::kOracle, 0).value, spec.times->standby.value, 1e-9);
}

// Machines fail at random times and come back after a time of any law with the same mean: fixed, or mostly short.
TEST(Standbys, WhileReplacedIsWhatASimulatedPoolNeeds) {
  const double per_s = 1 / 3600.0;
  for (const double hours : {0.5, 6.0, 48.0}) {
    for (const bool fixed : {true, false}) {
      std::mt19937_64 seeded(static_cast<uint64_t>(hours * 10) + (fixed ? 1 : 0));
      std::exponential_distribution<double> failure(per_s), mostly_short(1.0);
      const Seconds replace{hours * 3600};
      const int64_t enough = StandbysWhileReplaced(per_s, replace, 0.99);
      std::priority_queue<double, std::vector<double>, std::greater<>> away;
      double now = 0;
      int all = 0, found = 0, found_with_one_less = 0;
      for (int i = 0; i < 400'000; ++i) {
        now += failure(seeded);
        while (!away.empty() && away.top() <= now) away.pop();
        const auto replacing = static_cast<int64_t>(away.size());
        ++all;
        found += replacing < enough;
        found_with_one_less += replacing < enough - 1;
        const double factor = fixed ? 1 : (seeded() % 10 == 0 ? 9.1 : 0.1) * mostly_short(seeded);
        away.push(now + replace.value * factor);
      }
      const double load = per_s * replace.value;
      EXPECT_LE(PoissonAtLeast(load, enough), 0.01) << hours;
      EXPECT_GT(PoissonAtLeast(load, enough - 1), 0.01) << hours;
      EXPECT_NEAR(static_cast<double>(found) / all, 1 - PoissonAtLeast(load, enough), 0.003) << hours << fixed;
      EXPECT_NEAR(static_cast<double>(found_with_one_less) / all, 1 - PoissonAtLeast(load, enough - 1), 0.004)
          << hours << fixed;
    }
  }
}

TEST(Standbys, ObservedQuantileLeavesNoMoreThanItsShareAbove) {
  EXPECT_EQ(ObservedQuantile({}, 0.99), 0);
  EXPECT_EQ(ObservedQuantile({3}, 0.99), 3);
  std::vector<int64_t> days(100, 0);
  days[7] = 5;
  EXPECT_EQ(ObservedQuantile(days, 0.99), 0) << "one day in a hundred";
  days[9] = 2;
  EXPECT_EQ(ObservedQuantile(days, 0.99), 2);
}

TEST(Standbys, SaysWhatIsWrong) {
  StandbySpec spec;
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("machines must be from 1 to 1000000, found 0"));
  spec.machines = 10;
  spec.daily_rate = 1.5;
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("expected 0 to 1"));
  spec.daily_rate = std::nan("");
  EXPECT_FALSE(spec.Validate().ok());
  spec.daily_rate = 0.5;
  spec.replace = Seconds{1e14};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("machines to replace at a time"));
  spec.replace.reset();
  spec.times.emplace().standby = Seconds{std::numeric_limits<double>::infinity()};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("standby must be at least 0 s, found inf"));
  const TestFolder folder;
  const std::string path = folder.Write("standbys.toml", "machines = 3\nstandby_s = 3\n");
  EXPECT_THAT(Message(ReadStandbySpec(path).status()), HasSubstr("standby_s and reschedule_s are needed"));
}

}  // namespace
}  // namespace lockstep::cost
