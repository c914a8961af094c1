// An hour of a clean but restless job, over many seeds: no certain finding. Every planted fault on every rank: that
// rank is named.
#include <gtest/gtest.h>

#include <tuple>

#include "lockstep/detect/test_job.h"

namespace lockstep::detect {
namespace {

class CleanHour : public testing::TestWithParam<int> {};

// Things that happen in a healthy job: what, for how long at most, and whether to all ranks or to one.
struct Event {
  Conduct conduct;
  double seconds;
  bool all;
};
constexpr Event kEvents[] = {
    {Conduct::kEvaluates, 90, false}, {Conduct::kQuietlyEvaluates, 90, false}, {Conduct::kSaves, 90, false},
    {Conduct::kSleeps, 90, false},    {Conduct::kDownloads, 90, false},        {Conduct::kTraced, 300, false},
    {Conduct::kStopped, 120, true},   {Conduct::kFrozen, 120, true},           {Conduct::kStopped, 1.2, false},
};

TEST_P(CleanHour, HasNoCertainFinding) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  TestJob job(4, Seconds{std::exp(uniform(std::log(0.02), std::log(5)))}, random());
  const Nanos end = job.now() + ToNanos({3600});
  while (job.now() < end) {
    ASSERT_FALSE(IsCertain(job.Until(Seconds{uniform(10, 120)}, IsCertain)));
    const Event& event = kEvents[random() % std::size(kEvents)];
    const int rank = static_cast<int>(random() % 4);
    event.all ? job.AllDo(event.conduct) : job.Do(rank, event.conduct);
    const Verdict verdict = job.Until(Seconds{uniform(0, event.seconds)}, IsCertain);
    ASSERT_FALSE(IsCertain(verdict)) << verdict.findings.front().evidence.front() << ", conduct "
                                     << static_cast<int>(event.conduct);
    job.AllDo(Conduct::kSteps);
    if (random() % 8 == 0) job.PassUnwatched(Seconds{uniform(0, 3000)});
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, CleanHour, testing::Range(0, 24));

class PlantedFault : public testing::TestWithParam<std::tuple<Conduct, int>> {};

TEST_P(PlantedFault, IsFoundOnItsRank) {
  const auto [fault, rank] = GetParam();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    TestJob job(4, Seconds{0.05 * std::pow(3, seed % 4)}, seed);
    ASSERT_FALSE(IsCertain(job.Until(Seconds{60}, IsCertain)));
    job.Do(0, Conduct::kEvaluates);  // an evaluation beforehand must not blunt it
    ASSERT_FALSE(IsCertain(job.Until(Seconds{20}, IsCertain)));
    job.Do(0, Conduct::kSteps);
    ASSERT_FALSE(IsCertain(job.Until(Seconds{60}, IsCertain)));
    job.Do(rank, fault);
    // A loop is by the processor time that it takes.
    const Seconds limit{fault == Conduct::kCrowdedLoop ? 240.0 : 90.0};
    EXPECT_EQ(CertainSuspects(job.Until(limit, IsCertain)), std::to_string(rank)) << "seed " << seed;
  }
}
INSTANTIATE_TEST_SUITE_P(EachRank, PlantedFault,
                         testing::Combine(testing::Values(Conduct::kStopped, Conduct::kFrozen, Conduct::kBlocked,
                                                          Conduct::kPythonLoop, Conduct::kNativeLoop,
                                                          Conduct::kCrowdedLoop, Conduct::kOtherPlace),
                                          testing::Range(0, 4)));

}  // namespace
}  // namespace lockstep::detect
