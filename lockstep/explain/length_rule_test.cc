// Lengths with long tails: a few of them are many times as long as most, and nobody is slow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;
using testing::Contains;
using testing::Not;

// Pareto's, cut off at the tenfold: of one in fifty it is eightfold or more.
double Length(std::mt19937_64& random) {
  constexpr double kShape = 1.7, kMost = 10;
  const double uniform = std::uniform_real_distribution<double>(0, 1)(random);
  return 0.6 + 0.4 * std::min(kMost, std::pow(1 - uniform, -1 / kShape));
}

// One microbatch in each step of a rank.
std::vector<Fault> Lengths(const JobShape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Fault> faults;
  for (int dp = 0; dp < shape.dp; ++dp)
    for (int step = 0; step < shape.steps; ++step)
      faults.push_back({.kind = FaultKind::kTransientWorker,
                        .dp = dp,
                        .factor = Length(random),
                        .first_step = step,
                        .last_step = step});
  return faults;
}

// Of so many jobs one may have a length that is beyond what the others tell of chance.
TEST(LengthsWithALongTail, AreNoSlowWorkers) {
  size_t jobs = 0, named = 0;
  for (const auto& [dp, steps] : {std::pair(8, 6), std::pair(8, 20), std::pair(32, 12)})
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      const JobShape shape{.dp = dp, .pp = 1, .microbatches = 1, .steps = steps};
      const std::vector<Cause> causes = CausesOf(synth::Generate(shape, Lengths(shape, seed), seed).value(), shape);
      EXPECT_THAT(NamesOf(causes), Contains("sequence_length")) << dp << " ranks, " << steps << " steps, seed " << seed;
      ++jobs;
      named += causes.size() > 1 ? 1 : 0;
    }
  EXPECT_LE(named, jobs / 36);
}

// One in seven is three times as long: by what most do nothing varies.
TEST(LengthsOfWhichMostAreAlike, AreNoSlowWorkers) {
  for (const auto& [dp, steps] : {std::pair(8, 20), std::pair(32, 12)})
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      const JobShape shape{.dp = dp, .pp = 1, .microbatches = 1, .steps = steps};
      std::mt19937_64 random(seed);
      std::vector<Fault> faults;
      for (int each = 0; each < dp; ++each)
        for (int step = 0; step < steps; ++step)
          if (random() % 7 == 0)
            faults.push_back(
                {.kind = FaultKind::kTransientWorker, .dp = each, .factor = 3, .first_step = step, .last_step = step});
      EXPECT_EQ(TextOf(CausesOf(synth::Generate(shape, faults, seed).value(), shape)), "sequence_length")
          << dp << " ranks, " << steps << " steps, seed " << seed;
    }
}

// Whole steps of several microbatches, all as much longer: of lengths each would have its own.
TEST(StepsInWhichRanksAreSlow, AreNoLengthsIfAllMicrobatchesAreSlowAlike) {
  const JobShape shape{.dp = 4, .pp = 1, .microbatches = 4, .steps = 20};
  std::vector<Fault> faults;
  for (int dp = 0; dp < shape.dp; ++dp)
    faults.push_back(
        {.kind = FaultKind::kTransientWorker, .dp = dp, .factor = 2, .first_step = 4 * dp, .last_step = 4 * dp + 2});
  EXPECT_THAT(NamesOf(CausesOf(synth::Generate(shape, faults, 1).value(), shape)), Not(Contains("sequence_length")));
}

// Longer than the tail can be. But where one of its own lengths is tenfold, that step outweighs the rest.
TEST(LengthsWithALongTail, DoNotHideWhoIsFarSlowerForSomeSteps) {
  const JobShape shape{.dp = 32, .pp = 1, .microbatches = 1, .steps = 12};
  int found = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<Fault> faults = Lengths(shape, seed);
    faults.push_back({.kind = FaultKind::kTransientWorker, .dp = 5, .factor = 12, .first_step = 4, .last_step = 7});
    const std::string text = TextOf(CausesOf(synth::Generate(shape, faults, seed).value(), shape));
    found += text.find("transient_worker 5") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(found, 7);
}

}  // namespace
}  // namespace lockstep::explain
