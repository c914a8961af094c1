#include "lockstep/control/ledger.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep::control {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
Nanos At(double seconds) { return ToNanos(Seconds{seconds}); }
Nanos Of(const Ledger::Sums& sums, Phase phase) { return sums[static_cast<size_t>(phase)]; }

Nanos Sum(const Ledger::Sums& sums) {
  Nanos sum;
  for (const Nanos part : sums) sum += part;
  return sum;
}

// One fault: startup 0-2, productive 2-10, last step ended at 9.5, fault at 10, noticed at 10.25, killed at 10.5, loop
// at 12, caught up at 13.
Ledger OneFault() {
  Ledger ledger;
  ledger.Enter(Phase::kStartup, At(0.001), 0);
  ledger.Enter(Phase::kProductive, At(2), 0);
  ledger.Enter(Phase::kRecompute, At(9.5), 1);
  ledger.Enter(Phase::kDetect, At(10), 1);
  ledger.Enter(Phase::kDecide, At(10.25), 1);
  ledger.Enter(Phase::kRestart, At(10.5), 1);
  ledger.Enter(Phase::kRecompute, At(12), 1);
  ledger.Enter(Phase::kProductive, At(13), 0);
  return ledger;
}

TEST(Ledger, EveryMomentHasOnePhase) {
  const Ledger ledger = OneFault();
  const Ledger::Sums sums = ledger.Total(At(20));
  EXPECT_EQ(Of(sums, Phase::kProductive), At(7.5 + 7));
  EXPECT_EQ(Of(sums, Phase::kRecompute), At(0.5 + 1));
  EXPECT_EQ(Sum(sums), At(20) - At(0.001));
}

TEST(Ledger, AnIncidentHasItsPhases) {
  const incident::Phases phases = OneFault().OfIncident(1, At(20));
  EXPECT_DOUBLE_EQ(phases.detect.value, 0.25);
  EXPECT_DOUBLE_EQ(phases.decide.value, 0.25);
  EXPECT_DOUBLE_EQ(phases.restart.value, 1.5);
  EXPECT_DOUBLE_EQ(phases.recompute.value, 1.5);
  EXPECT_DOUBLE_EQ(OneFault().OfIncident(2, At(20)).detect.value, 0);
}

// ETTR = productive / wall. Over the last 4 s before 14 s: 1 s of 4.
TEST(Ledger, SlidingLooksAtTheWindowOnly) {
  const Ledger ledger = OneFault();
  EXPECT_DOUBLE_EQ(ledger.Sliding(At(14), Seconds{4}), 0.25);
  EXPECT_DOUBLE_EQ(ledger.Sliding(At(14), Seconds{1}), 1);
  EXPECT_NEAR(ledger.Sliding(At(14), Seconds{3600}), ledger.Cumulative(At(14)), 1e-12);
}

TEST(Ledger, AnEmptyOneLostNothing) {
  EXPECT_DOUBLE_EQ(Ledger().Cumulative(At(5)), 1);
  EXPECT_EQ(Sum(Ledger().Total(At(5))).value, 0);
}

TEST(Ledger, EnteringEarlierRewritesTheTail) {
  Ledger ledger;
  ledger.Enter(Phase::kProductive, At(1), 0);
  ledger.Enter(Phase::kDetect, At(5), 1);
  ledger.Enter(Phase::kRestart, At(6), 1);
  ledger.Enter(Phase::kDetect, At(4), 1);
  EXPECT_EQ(ledger.Current(), Phase::kDetect);
  EXPECT_EQ(Of(ledger.Total(At(8)), Phase::kProductive).value, 3 * kSecond);
  EXPECT_EQ(Of(ledger.Total(At(8)), Phase::kRestart).value, 0);
}

TEST(Ledger, NothingIsBeforeTheFirstMoment) {
  Ledger ledger;
  ledger.Enter(Phase::kStartup, At(3), 0);
  ledger.Enter(Phase::kDetect, At(1), 1);
  EXPECT_EQ(Sum(ledger.Total(At(8))).value, 5 * kSecond);
}

TEST(Ledger, AClosedOneStandsStill) {
  Ledger ledger = OneFault();
  ledger.Close(At(15));
  EXPECT_EQ(Sum(ledger.Total(At(100))), At(15) - At(0.001));
  EXPECT_DOUBLE_EQ(ledger.Sliding(At(100), Seconds{1}), 1);
}

// Property: whatever is entered, however far back, the sums equal the wall time to the nanosecond, and what all
// incidents lost is what the run lost.
TEST(Ledger, SumsEqualWallTime) {
  std::mt19937_64 random(20240517);
  for (int run = 0; run < 200; ++run) {
    Ledger ledger;
    int64_t now = 1 + static_cast<int64_t>(random() % 1000);
    const int64_t first = now;
    ledger.Enter(Phase::kStartup, {now}, 0);
    for (int i = 0; i < 50; ++i) {
      now += static_cast<int64_t>(random() % 1000);
      const int64_t back = static_cast<int64_t>(random() % 3000);
      ledger.Enter(static_cast<Phase>(random() % kPhases), {now - back}, static_cast<int64_t>(random() % 4));
      ASSERT_EQ(Sum(ledger.Total({now})).value, now - first);
      ASSERT_EQ(Sum(ledger.Within({first}, {now})).value, now - first);
      Seconds restarting{};
      for (int64_t incident = 0; incident < 4; ++incident)
        restarting.value += ledger.OfIncident(incident, {now}).restart.value;
      ASSERT_NEAR(restarting.value, ToSeconds(Of(ledger.Total({now}), Phase::kRestart)).value, 1e-12);
    }
  }
}

}  // namespace
}  // namespace lockstep::control
