// Ranks that are held up now and then by whatever else runs on their machines: who is slow all the time stays so.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "lockstep/explain/test_job.h"

namespace lockstep::explain {
namespace {

using synth::Fault;
using synth::FaultKind;
using synth::JobShape;

// As two processes under a profiler: few steps, and one takes almost three times as long as the other.
const JobShape kTwo{.dp = 2, .pp = 1, .microbatches = 4, .steps = 8};
constexpr double kSlow = 2.67, kHeldUp = 2.4;

Fault HeldUp(int dp, int step, double factor = kHeldUp) {
  return {.kind = FaultKind::kTransientWorker, .dp = dp, .factor = factor, .first_step = step, .last_step = step};
}

Cause First(const std::vector<Fault>& faults, uint64_t seed = 1) {
  const std::vector<Cause> causes = CausesOf(synth::Generate(kTwo, faults, seed).value(), kTwo);
  return causes.empty() ? Cause{.suspects = {{}}, .evidence = {"nothing is named"}} : causes.front();
}

TEST(OnABusyMachine, WhoIsAlwaysSlowIsSoWhereOthersAreHeldUp) {
  const Fault slow{.kind = FaultKind::kWorker, .dp = 1, .factor = kSlow};
  for (int step = 0; step < kTwo.steps; ++step)
    for (int other = step; other < kTwo.steps; ++other) {
      std::vector<Fault> faults{slow, HeldUp(0, step)};
      if (other != step) faults.push_back(HeldUp(0, other));
      const Cause cause = First(faults);
      EXPECT_STREQ(CauseName(cause.kind), "worker") << "steps " << step << " and " << other;
      EXPECT_EQ(cause.suspects[0].dp, 1);
    }
}

TEST(OnABusyMachine, WhoIsSlowForSomeStepsIsSoForThem) {
  const Fault slow{.kind = FaultKind::kTransientWorker, .dp = 1, .factor = kSlow, .first_step = 2, .last_step = 5};
  for (int step = 0; step < kTwo.steps; ++step) {
    const Cause cause = First({slow, HeldUp(0, step)});
    EXPECT_STREQ(CauseName(cause.kind), "transient_worker") << step;
    EXPECT_EQ(cause.suspects[0].dp, 1) << step;
    EXPECT_NEAR(static_cast<double>(cause.suspects[0].first_step.value_or(-9)), 2, step == 2 ? 1 : 0) << step;
    EXPECT_NEAR(static_cast<double>(cause.suspects[0].last_step.value_or(-9)), 5, step == 5 ? 1 : 0) << step;
  }
}

// All of both, more or less.
TEST(OnABusyMachine, NoiseLeavesWhatMostStepsSay) {
  for (const FaultKind kind : {FaultKind::kWorker, FaultKind::kTransientWorker})
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      std::mt19937_64 random(seed);
      std::normal_distribution<double> normal(0, 0.25);
      std::vector<Fault> faults{{.kind = kind, .dp = 1, .factor = kSlow, .first_step = 2, .last_step = 5}};
      for (int dp = 0; dp < kTwo.dp; ++dp)
        for (int step = 0; step < kTwo.steps; ++step)
          faults.push_back(HeldUp(dp, step, std::exp(std::abs(normal(random)))));
      const Cause cause = First(faults, seed);
      EXPECT_EQ(cause.kind == CauseKind::kWorker, kind == FaultKind::kWorker) << "seed " << seed;
      EXPECT_EQ(cause.suspects.at(0).dp, 1) << "seed " << seed;
    }
}

// A worker that was mended, and then all take longer: what most ranks do alike is the job's pace, and nobody was held
// up.
TEST(AfterAMend, AJobWhoseStepsGrowHasASlowWorkerBeforeItOnly) {
  constexpr double kSlower = 1.3, kGrown = 1.2;
  for (const int dp : {2, 3, 4, 16})
    for (const int steps : {8, 20}) {
      const JobShape shape{.dp = dp, .pp = 1, .microbatches = 4, .steps = steps};
      const int mended = steps * 3 / 4;
      std::vector<Fault> faults{
          {.kind = FaultKind::kTransientWorker, .dp = 1, .factor = kSlower, .first_step = 0, .last_step = mended - 1}};
      for (int each = 0; each < dp; ++each)
        faults.push_back({.kind = FaultKind::kTransientWorker,
                          .dp = each,
                          .factor = kGrown,
                          .first_step = mended,
                          .last_step = steps - 1});
      const std::vector<Cause> causes = CausesOf(synth::Generate(shape, faults, 1).value(), shape);
      EXPECT_EQ(TextOf(causes), "transient_worker 1") << dp << " ranks, " << steps << " steps";
      ASSERT_FALSE(causes.empty());
      EXPECT_EQ(causes[0].suspects[0].first_step, 0);
      EXPECT_EQ(causes[0].suspects[0].last_step, mended - 1);
    }
}

// Of three or four ranks most may be held up at once: not all, and that tells.
TEST(OnABusyMachine, WhoIsAlwaysSlowIsSoWhereMostOthersAreHeldUp) {
  for (const int dp : {3, 4}) {
    const JobShape shape{.dp = dp, .pp = 1, .microbatches = 4, .steps = 8};
    std::vector<Fault> faults{{.kind = FaultKind::kWorker, .dp = 1, .factor = kSlow}};
    for (int each = 2; each < dp; ++each)
      for (const int step : {3, 7}) faults.push_back(HeldUp(each, step));
    const std::vector<Cause> causes = CausesOf(synth::Generate(shape, faults, 1).value(), shape);
    ASSERT_FALSE(causes.empty());
    EXPECT_STREQ(CauseName(causes[0].kind), "worker") << dp;
    EXPECT_EQ(causes[0].suspects[0].dp, 1) << dp;
  }
}

}  // namespace
}  // namespace lockstep::explain
