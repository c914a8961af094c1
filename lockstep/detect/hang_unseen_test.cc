// Jobs that tell no steps: that they stand their communication tells.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/detect/hang.h"
#include "lockstep/detect/test_job.h"

namespace lockstep::detect {
namespace {

using incident::Syndrome;
using testing::Contains;
using testing::HasSubstr;

constexpr Seconds kHangLimit{120};

class HangUnseen : public testing::Test {
 protected:
  HangUnseen() {
    job_.starting = job_.unseen = true;
    job_.Run(Seconds{70});
  }
  // Rank 1 does so from now on, and the others wait for it.
  void Hang(Conduct conduct) {
    job_.Do(1, conduct);
    job_.waits_since = job_.now();
  }
  double SecondsUntil(Seconds limit, bool (*pleases)(const Verdict&)) {
    const Nanos begin = job_.now();
    verdict_ = job_.Until(limit, pleases);
    return ToSeconds(job_.now() - begin).value;
  }
  static bool IsNamed(const Verdict& verdict) { return !verdict.findings.empty(); }

  TestJob job_{4, Seconds{0.2}, 1, {.hang_limit = kHangLimit}};
  Verdict verdict_;
};

TEST_F(HangUnseen, WhoeverIsOutsideIsNamedAndAtTheHangLimitForCertain) {
  for (const Conduct conduct : {Conduct::kSleeps, Conduct::kBlocked, Conduct::kPythonLoop, Conduct::kDownloads}) {
    Hang(conduct);
    EXPECT_NEAR(SecondsUntil(Seconds{100}, IsNamed), 60.5, 1) << "first_step_limit, and a look at stacks";
    EXPECT_EQ(verdict_.findings.front().syndrome, Syndrome::kNotEntered);
    EXPECT_NEAR(SecondsUntil(kHangLimit, IsCertain), 60, 1) << static_cast<int>(conduct);
    ASSERT_EQ(CertainSuspects(verdict_), "1");
    EXPECT_EQ(verdict_.findings.front().since, *job_.waits_since);
    EXPECT_THAT(verdict_.findings.front().evidence,
                Contains(HasSubstr("the job tells no steps; nothing has moved in its communication for 120 s")));
    job_.Do(1, Conduct::kSteps);
    job_.waits_since.reset();
    job_.Tick();
  }
}

TEST_F(HangUnseen, AllInOneCollectiveAreStalledAtTheHangLimit) {
  Hang(Conduct::kOtherPlace);
  job_.AllDo(Conduct::kOtherPlace);
  EXPECT_NEAR(SecondsUntil(Seconds{150}, IsCertain), 120, 0.2);
  ASSERT_TRUE(IsNamed(verdict_));
  EXPECT_EQ(verdict_.findings.front().syndrome, Syndrome::kStalled);
}

// It may be what the job is for: evaluation on one rank, a save. A download that brings nothing for so long is no work.
TEST_F(HangUnseen, WhileARankOutsideWorksNothingIsCertain) {
  for (const Conduct conduct : {Conduct::kEvaluates, Conduct::kSaves}) {
    Hang(conduct);
    EXPECT_FALSE(IsCertain(job_.Until(Seconds{500}, IsCertain))) << static_cast<int>(conduct);
    job_.Do(1, Conduct::kSteps);
  }
}

TEST_F(HangUnseen, NothingIsNamedWhereNobodyKnowsOfWaiting) {
  job_.Do(1, Conduct::kSleeps);
  EXPECT_FALSE(IsNamed(job_.Until(Seconds{500}, IsNamed)));
}

// A part of the job goes on: its communication moves, and whoever is stopped is evidence by itself.
TEST_F(HangUnseen, AStoppedRankIsCertainWhateverMoves) {
  job_.Do(1, Conduct::kStopped);
  const Nanos begin = job_.now();
  for (; !IsCertain(verdict_) && job_.now() - begin < ToNanos(Seconds{100}); verdict_ = job_.Tick())
    job_.waits_since = job_.now();
  EXPECT_NEAR(ToSeconds(job_.now() - begin).value, 60, 0.3);
  EXPECT_EQ(CertainSuspects(verdict_), "1");
}

// How long communication is quiet stands for three steps, also before the job counts as training.
TEST_F(HangUnseen, AStoppedRankIsCertainOnceCommunicationIsQuietForLongerThanUsual) {
  for (const bool unseen : {true, false})
    for (const double usual : {0.3, 8.0, 100.0}) {
      job_.unseen = unseen;
      job_.usual_quiet = Seconds{usual};
      Hang(Conduct::kStopped);
      EXPECT_NEAR(SecondsUntil(Seconds{100}, IsCertain), usual < 2 ? 1.7 : std::min(60.0, 0.85 * usual), 0.3) << usual;
      EXPECT_EQ(CertainSuspects(verdict_), "1");
      EXPECT_EQ(verdict_.findings.front().syndrome, Syndrome::kStopped);
      job_.Do(1, Conduct::kSteps);
      job_.waits_since.reset();
      job_.Tick();
    }
}

// Rank 2 evaluates; somebody stops rank 1, which waits for it.
TEST_F(HangUnseen, AHaltThatBeganInAStallIsNotItsCause) {
  job_.usual_quiet = Seconds{0.3};
  job_.Do(2, Conduct::kEvaluates);
  job_.waits_since = job_.now();
  job_.Run(Seconds{5});
  job_.Do(1, Conduct::kStopped);
  EXPECT_NEAR(SecondsUntil(Seconds{100}, IsCertain), 60, 0.3);
  EXPECT_EQ(CertainSuspects(verdict_), "1");
}

TEST_F(HangUnseen, NoOtherIsNamedSoonerBecauseCommunicationIsQuiet) {
  job_.usual_quiet = Seconds{0.3};
  Hang(Conduct::kSleeps);
  EXPECT_NEAR(SecondsUntil(Seconds{100}, IsNamed), 60.5, 1);
}

TEST_F(HangUnseen, ADebuggerIsNoFault) {
  Hang(Conduct::kTraced);
  EXPECT_FALSE(IsCertain(job_.Until(Seconds{500}, IsCertain)));
}

}  // namespace
}  // namespace lockstep::detect
