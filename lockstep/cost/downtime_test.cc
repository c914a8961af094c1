#include "lockstep/cost/downtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <queue>
#include <random>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/test_folder.h"

namespace lockstep::cost {
namespace {

using testing::HasSubstr;

DowntimeSpec Published(const char* name) {
  return ReadDowntimeSpec(std::string(LOCKSTEP_PRESETS) + "/downtime/" + name + ".toml").value();
}

// The phases and sums that C4 published (HPCA'25).
TEST(Downtime, PublishedJobs) {
  struct Job {
    const char* name;
    double lost_work, detect, diagnose, restart, total;
  };
  for (const Job& job : {Job{"c4-2023-06", 0.0753, 0.0341, 0.1965, 0.0060, 0.3119},
                         Job{"c4-2023-12", 0.0023, 0.0005, 0.0073, 0.0015, 0.0116}}) {
    const Downtime expected = Expect(Published(job.name));
    EXPECT_NEAR(expected.lost_work, job.lost_work, 5e-5) << job.name;
    EXPECT_NEAR(expected.detect, job.detect, 5e-5) << job.name;
    EXPECT_NEAR(expected.diagnose, job.diagnose, 5e-5) << job.name;
    EXPECT_NEAR(expected.restart, job.restart, 5e-5) << job.name;
    EXPECT_NEAR(expected.total(), job.total, 5e-5) << job.name;
  }
}

DowntimeSpec Some() {
  DowntimeSpec spec;
  spec.between_failures = Seconds{36'000};
  spec.detect = {60};
  spec.diagnose = {600};
  spec.restart = {120};
  spec.checkpoint_interval = {900};
  spec.checkpoint_cost = {20};
  return spec;
}

// The job, second by second as far as it matters: trains, saves, fails at random while it trains or saves.
TEST(Downtime, IsWhatASimulatedJobLoses) {
  const DowntimeSpec spec = Some();
  std::mt19937_64 chance(7);
  std::exponential_distribution<double> until_failure(1 / spec.between_failures->value);
  double wall = 0, lost = 0, saving = 0, useful = 0;
  const double cycle = spec.checkpoint_interval.value + spec.checkpoint_cost.value;
  for (int failure = 0; failure < 400'000; ++failure) {
    const double run = until_failure(chance), cycles = std::floor(run / cycle);
    useful += cycles * spec.checkpoint_interval.value;
    saving += cycles * spec.checkpoint_cost.value;
    lost += run - cycles * cycle;
    wall += run + spec.detect.value + spec.diagnose.value + spec.restart.value;
  }
  const Downtime expected = Expect(spec);
  EXPECT_NEAR(expected.lost_work, lost / wall, 0.02 * expected.lost_work);
  EXPECT_NEAR(expected.useful(), useful / wall, 0.002);
  EXPECT_NEAR(expected.checkpoints, saving / wall, 0.05 * expected.checkpoints);
}

// Nodes fail while the job runs and come back after an exponential time; without a spare the job waits for the first.
TEST(Downtime, WaitsForASpareAsASimulatedJobDoes) {
  std::mt19937_64 chance(3);
  const double between = 3600;
  const Seconds repair{4 * 3600};
  for (const int spares : {0, 1, 4, 8}) {
    std::exponential_distribution<double> failure(1 / between), back(1 / repair.value);
    std::priority_queue<double, std::vector<double>, std::greater<>> away;
    double now = 0, waited = 0;
    for (int i = 0; i < 200'000; ++i) {
      now += failure(chance);
      while (!away.empty() && away.top() <= now) away.pop();
      away.push(now + back(chance));
      if (static_cast<int>(away.size()) <= spares) continue;
      waited += away.top() - now;
      now = away.top();
      away.pop();
    }
    const double share = WaitsForSpare(repair.value / between, spares);
    EXPECT_NEAR(share, waited / now, 0.05 * share) << spares;
  }
}

// The same with what each failure costs besides, meanwhile nodes come back; and as many failures counted on the wall
// say the same as the time between them.
TEST(Downtime, SharesAddUpWhereItWaits) {
  for (const int spares : {0, 2}) {
    DowntimeSpec spec = Some();
    spec.node_repair = Seconds{40 * 3600}, spec.spares = spares;
    const Downtime expected = Expect(spec);
    std::mt19937_64 chance(5);
    std::exponential_distribution<double> failure(1 / spec.between_failures->value), back(1 / spec.node_repair->value);
    const double each = 60 + 600 + 120;
    std::priority_queue<double, std::vector<double>, std::greater<>> away;
    double now = 0, waited = 0;
    constexpr int kFailures = 200'000;
    for (int i = 0; i < kFailures; ++i) {
      now += failure(chance);
      away.push(now + back(chance));
      now += each;
      while (!away.empty() && away.top() <= now) away.pop();
      if (static_cast<int>(away.size()) <= spares) continue;
      waited += away.top() - now;
      now = away.top();
      away.pop();
    }
    EXPECT_NEAR(expected.no_spare, waited / now, 0.05 * expected.no_spare) << spares;
    EXPECT_NEAR(expected.failures_per_day, kFailures / now * 86'400, 0.05 * expected.failures_per_day) << spares;
    EXPECT_NEAR(1 - expected.total() + expected.lost_work, kFailures * spec.between_failures->value / now, 0.01)
        << spares;

    // Counted while it had spares enough, there are more of them.
    DowntimeSpec counted = spec;
    counted.between_failures.reset();
    counted.failures = expected.failures_per_day / (1 - expected.no_spare), counted.period = Seconds{86'400};
    EXPECT_NEAR(Expect(counted).no_spare, expected.no_spare, 1e-9) << spares;
    EXPECT_NEAR(Expect(counted).failures_per_day, expected.failures_per_day, 1e-9) << spares;
    EXPECT_NEAR(Expect(WithFailures(counted, 1)).total(), expected.total(), 1e-9) << spares;
  }
}

TEST(Downtime, NoRateOfFailuresLeavesLessThanNothing) {
  DowntimeSpec spec = Some();
  spec.node_repair = Seconds{86'400};
  for (const int spares : {0, 3})
    for (const double between : {1.0, 1e3, 1e6}) {
      spec.spares = spares, spec.between_failures = Seconds{between};
      ASSERT_TRUE(spec.Validate().ok()) << spec.Validate();
      const Downtime expected = Expect(spec);
      EXPECT_GE(expected.useful(), 0) << between;
      EXPECT_LT(expected.failures_per_day, 1 + spares) << between << ": no more nodes than it has can be away";
    }
}

TEST(Downtime, TheBestIntervalIsAboutYoungs) {
  const DowntimeSpec spec = Some();
  const double best = BestInterval(spec)->value;
  EXPECT_NEAR(best, std::sqrt(2 * 20 * 36'000.0), 0.05 * best);
  for (const double factor : {0.8, 1.25}) {
    DowntimeSpec other = spec;
    other.checkpoint_interval.value = best * factor;
    DowntimeSpec at_best = spec;
    at_best.checkpoint_interval.value = best;
    EXPECT_LT(Expect(other).useful(), Expect(at_best).useful());
  }
  DowntimeSpec free = spec;
  free.checkpoint_cost = {0};
  EXPECT_FALSE(BestInterval(free).has_value());
  DowntimeSpec unfailing = spec;
  unfailing.between_failures.reset();
  unfailing.failures = 0;
  unfailing.period = Seconds{30 * 86'400.0};
  EXPECT_FALSE(BestInterval(unfailing).has_value()) << "the longer the better";
  EXPECT_TRUE((*DowntimeReport(unfailing))["checkpoint"]["best_interval_s"].is_null());
}

// Young's sqrt(2 delta M) is its first order, whatever the scale.
TEST(Downtime, TheBestIntervalOfCheckpointsThatTakeAges) {
  DowntimeSpec spec = Some();
  spec.between_failures = Seconds{1e15};
  spec.checkpoint_cost = {1e13};
  const double best = BestInterval(spec)->value;
  EXPECT_NEAR(best, std::sqrt(2 * 1e13 * 1e15), 0.1 * best);
}

TEST(Downtime, EnoughSparesAreNoMoreThanThat) {
  DowntimeSpec spec = Some();
  spec.node_repair = Seconds{86'400};
  const int enough = EnoughSpares(spec).value();
  spec.spares = enough;
  EXPECT_LE(Expect(spec).no_spare, 1e-4);
  spec.spares = enough - 1;
  EXPECT_GT(Expect(spec).no_spare, 1e-4);
  EXPECT_EQ((*DowntimeReport(spec))["spares"]["enough"], enough);
}

TEST(Downtime, SaysWhereWaitsForASpareAreOverestimated) {
  const auto notes_at = [](double down, std::optional<int> spares) {
    DowntimeSpec spec;
    spec.between_failures = Seconds{36000};
    spec.detect.value = down * 36000;
    spec.spares = spares;
    if (spares) spec.node_repair = Seconds{86400};
    return OneLine(DowntimeReport(spec).value().value("notes", Json::array()));
  };
  EXPECT_EQ(notes_at(0.19, 1), "[]");
  EXPECT_NE(notes_at(0.5, 1).find("down 0.5 times as long"), std::string::npos);
  EXPECT_EQ(notes_at(0.5, {}), "[]") << "no wait is in it";
}

TEST(Downtime, SaysWhatIsWrong) {
  DowntimeSpec spec = Some();
  spec.failures = 3;
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("counted over a period"));
  spec.period = Seconds{86'400};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("found both"));
  spec = Some();
  spec.between_failures.reset();
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("found neither"));
  spec = Some();
  spec.detect = {-1};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("detect must be at least 0 s, found -1"));
  spec = Some();
  spec.between_failures.reset();
  spec.failures = 200;
  spec.period = Seconds{86'400};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("leave no time to train"));
  spec = Some();
  spec.spares = 2;
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("how long the repair of a node takes, too (--node-repair-h"));
  spec.node_repair = Seconds{INFINITY};
  EXPECT_THAT(Message(spec.Validate()), HasSubstr("node repair must be at least 0 s, found inf"));
  const TestFolder folder;
  const std::string path = folder.Write("spec.toml", "failures = 3\nperiod_day = 30\n");
  EXPECT_THAT(Message(ReadDowntimeSpec(path).status()),
              HasSubstr("spec.toml:2:1: period_day is not a known key; did you mean period_days?"));
}

}  // namespace
}  // namespace lockstep::cost
