#include "lockstep/detect/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "lockstep/detect/step_time.h"
#include "lockstep/detect/test_job.h"

namespace lockstep::detect {
namespace {

using incident::Syndrome;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool Named(const Verdict& verdict) { return !verdict.findings.empty(); }

// Ticks until a certain finding, at most `limit`; returns how long it took.
Seconds TimeToCertainty(TestJob& job, Seconds limit, Verdict& verdict) {
  const Nanos begin = job.now();
  verdict = job.Until(limit, IsCertain);
  return ToSeconds(job.now() - begin);
}

TEST(Hang, AJobThatStepsIsLeftAlone) {
  TestJob job(4, Seconds{0.2});
  EXPECT_FALSE(Named(job.Until(Seconds{600}, Named)));
  EXPECT_GT(job.steps(), 1000);
}

TEST(Hang, NothingIsSaidBeforeTheLoop) {
  HangDetector detector(HangLimits{}, 2);
  for (int tick = 0; tick < 10'000; ++tick) {
    RankSample sample;
    sample.at = Nanos{tick * 100'000'000LL};
    detector.Add(sample);
    EXPECT_TRUE(detector.At(sample.at).findings.empty());
  }
}

// first_step_limit.
TEST(Hang, AStoppedRankIsCertainBeforeTheLoop) {
  TestJob job(4, Seconds{0.2});
  job.starting = true;
  job.Run(Seconds{30});
  job.Do(3, Conduct::kStopped);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{100}, verdict).value, 60, 0.3);
  EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kStopped);
  EXPECT_EQ(CertainSuspects(verdict), "3");
  EXPECT_THAT(verdict.findings.front().evidence, Contains("training has not begun 90 s after the start"));
}

TEST(Hang, AStartTakesItsTimeWhereNobodyKnowsOfALoop) {
  TestJob job(4, Seconds{0.2});
  job.starting = true;
  job.Do(0, Conduct::kBlocked);
  EXPECT_FALSE(Named(job.Until(Seconds{3000}, Named)));
}

TEST(Hang, AfterARestartAStartThatHangsIsNamedLikeAStep) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.starting = true;
  job.Restart();
  job.Do(2, Conduct::kBlocked);
  Verdict verdict;
  const double seconds = TimeToCertainty(job, Seconds{200}, verdict).value;
  EXPECT_GT(seconds, 60);
  EXPECT_LT(seconds, 80);
  EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kNotEntered);
  EXPECT_EQ(CertainSuspects(verdict), "2");
}

TEST(Hang, AfterARestartASlowStartIsLeftAlone) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.starting = true;
  job.Restart();
  job.AllDo(Conduct::kEvaluates);
  EXPECT_FALSE(IsCertain(job.Until(Seconds{590}, IsCertain)));
}

// 0.85 * max(3 steps, least_stall) = 0.85 * max(0.6, 2) = 1.7 s.
TEST(Hang, AStoppedRankIsCertainWithinTwoSeconds) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(2, Conduct::kStopped);
  Verdict verdict;
  const double seconds = TimeToCertainty(job, Seconds{10}, verdict).value;
  EXPECT_NEAR(seconds, 1.7, 0.15);
  EXPECT_LE(seconds, 2);
  const incident::Finding& finding = verdict.findings.front();
  EXPECT_EQ(finding.syndrome, Syndrome::kStopped);
  EXPECT_EQ(CertainSuspects(verdict), "2");
  EXPECT_NEAR(ToSeconds(job.now() - finding.since).value, 1.7, 0.15);
  EXPECT_EQ(finding.evidence[0], "rank 2: state T for 1.7 s");
  EXPECT_EQ(finding.evidence[1], "3 ranks wait for the others");
  EXPECT_THAT(finding.evidence[2], HasSubstr("its step takes 0.2"));
  EXPECT_FALSE(verdict.wants_stacks);
}

// Whatever befalls half of a large job, the finding names them all and has some lines.
TEST(Hang, OfManyRanksSomeAreEvidence) {
  for (const Conduct conduct : {Conduct::kStopped, Conduct::kBlocked, Conduct::kPythonLoop, Conduct::kOtherPlace,
                                Conduct::kEvaluates, Conduct::kTraced}) {
    TestJob job(128, Seconds{0.2}, 1, {.hang_limit = Seconds{40}});
    job.Run(Seconds{30});
    for (int rank = 0; rank < 128; rank += 2) job.Do(rank, conduct);
    const Verdict verdict = job.Run(Seconds{45});
    ASSERT_FALSE(verdict.findings.empty());
    const incident::Finding& finding = verdict.findings.front();
    if (conduct != Conduct::kTraced) {
      EXPECT_EQ(finding.suspects.size() + finding.ambiguous_with.size(), conduct == Conduct::kOtherPlace ? 128u : 64u);
    }
    EXPECT_LE(finding.evidence.size(), 20u);
    EXPECT_THAT(finding.evidence, Contains(HasSubstr(" more ranks")));
  }
}

// 0.85 * max(3 x 4 s, 2 s) = 10.2 s.
TEST(Hang, LongStepsMakeItPatient) {
  TestJob job(4, Seconds{4});
  job.Run(Seconds{300});
  job.Do(0, Conduct::kStopped);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{60}, verdict).value, 10.2, 1.3);
  EXPECT_EQ(CertainSuspects(verdict), "0");
}

TEST(Hang, FrozenIsNotStopped) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(1, Conduct::kFrozen);
  const Verdict verdict = job.Until(Seconds{10}, IsCertain);
  EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kFrozen);
  EXPECT_EQ(verdict.findings.front().evidence[0], "rank 1: frozen by a cgroup for 1.7 s");
}

TEST(Hang, SeveralStoppedRanksAreAllNamed) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(1, Conduct::kStopped);
  job.Do(3, Conduct::kStopped);
  EXPECT_EQ(CertainSuspects(job.Until(Seconds{10}, IsCertain)), "1,3");
}

TEST(Hang, APausedJobIsNoFault) {
  for (const Conduct pause : {Conduct::kStopped, Conduct::kFrozen}) {
    TestJob job(4, Seconds{0.2});
    job.Run(Seconds{30});
    job.AllDo(pause);
    EXPECT_FALSE(Named(job.Until(Seconds{3600}, Named)));
    job.AllDo(Conduct::kSteps);
    EXPECT_FALSE(Named(job.Until(Seconds{60}, Named)));
  }
}

TEST(Hang, ABriefStopIsNoFault) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  for (int i = 0; i < 100; ++i) {
    job.Do(i % 4, Conduct::kStopped);
    EXPECT_FALSE(IsCertain(job.Until(Seconds{1.5}, IsCertain)));
    job.Do(i % 4, Conduct::kSteps);
    EXPECT_FALSE(IsCertain(job.Until(Seconds{1}, IsCertain)));
  }
}

TEST(Hang, UnwatchedTimeDoesNotCount) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.PassUnwatched(Seconds{7200});
  EXPECT_FALSE(IsCertain(job.Until(Seconds{60}, IsCertain)));
}

TEST(Hang, ADebuggerIsOnlyNotedAfterTheHangLimit) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(2, Conduct::kTraced);
  EXPECT_FALSE(Named(job.Until(Seconds{595}, Named)));
  const Verdict verdict = job.Run(Seconds{3000});
  ASSERT_TRUE(Named(verdict));
  EXPECT_FALSE(IsCertain(verdict));
  EXPECT_THAT(verdict.findings.front().evidence, Contains("a debugger is attached to rank 2"));
  job.Do(2, Conduct::kSteps);
  EXPECT_FALSE(IsCertain(job.Until(Seconds{60}, IsCertain)));
}

// Named after 2 s; three stack samples and 10 s of evidence later certain.
TEST(Hang, ABlockedRankIsCertainAfterTheBlockedLimit) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(3, Conduct::kBlocked);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{60}, verdict).value, 13, 1.5);
  EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kNotEntered);
  EXPECT_EQ(CertainSuspects(verdict), "3");
  EXPECT_THAT(verdict.findings.front().evidence[0], StartsWith("rank 3 is blocked in train.py:8 in hold, 0.0"));
}

// Of processor time: how much of a core it gets says nothing of what it does with it.
TEST(Hang, ALoopIsCertainAfterTheSpinLimit) {
  for (const auto& [loop, seconds] : {std::pair(Conduct::kPythonLoop, 63), std::pair(Conduct::kNativeLoop, 63),
                                      std::pair(Conduct::kCrowdedLoop, 203)}) {
    TestJob job(4, Seconds{0.2});
    job.Run(Seconds{30});
    job.Do(0, loop);
    Verdict verdict;
    EXPECT_NEAR(TimeToCertainty(job, Seconds{300}, verdict).value, seconds, 3);
    EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kSpinning);
    EXPECT_EQ(CertainSuspects(verdict), "0");
  }
}

TEST(Hang, AMinorityInAnotherPlaceIsCertain) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(1, Conduct::kOtherPlace);
  const Verdict verdict = job.Until(Seconds{60}, IsCertain);
  EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kDesynchronised);
  EXPECT_EQ(CertainSuspects(verdict), "1");
}

TEST(Hang, ATieIsCertainOnlyAfterTheHangLimit) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(1, Conduct::kOtherPlace);
  job.Do(2, Conduct::kOtherPlace);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{900}, verdict).value, 600, 5);
  EXPECT_TRUE(verdict.findings.front().suspects.empty());
  EXPECT_EQ(verdict.findings.front().ambiguous_with.size(), 4u);
}

TEST(Hang, HonestWorkIsNamedButNeverCertain) {
  for (const Conduct work :
       {Conduct::kEvaluates, Conduct::kQuietlyEvaluates, Conduct::kSaves, Conduct::kSleeps, Conduct::kDownloads}) {
    TestJob job(4, Seconds{0.2});
    job.Run(Seconds{30});
    job.Do(0, work);
    EXPECT_FALSE(IsCertain(job.Until(Seconds{90}, IsCertain)));
    const Verdict verdict = job.Tick();
    EXPECT_EQ(verdict.findings.front().syndrome, Syndrome::kNotEntered);
    EXPECT_EQ(verdict.findings.front().suspects, std::vector{incident::SuspectRank(RankId(0))});
    EXPECT_THAT(verdict.findings.front().evidence[0], StartsWith("rank 0 is in "));
    EXPECT_TRUE(verdict.wants_stacks);
    job.Do(0, Conduct::kSteps);
    EXPECT_FALSE(Named(job.Run(Seconds{10})));
  }
}

TEST(Hang, TheHangLimitEndsASleepAndLaterWork) {
  TestJob sleep(4, Seconds{0.2}), work(4, Seconds{0.2});
  sleep.Run(Seconds{30});
  work.Run(Seconds{30});
  sleep.Do(2, Conduct::kSleeps);
  work.Do(2, Conduct::kQuietlyEvaluates);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(sleep, Seconds{2000}, verdict).value, 600, 5);
  EXPECT_EQ(CertainSuspects(verdict), "2");
  EXPECT_NEAR(TimeToCertainty(work, Seconds{2000}, verdict).value, 1800, 5);
  EXPECT_EQ(CertainSuspects(verdict), "2");
}

TEST(Hang, ARankStoppedDuringAnEvaluationIsNotTheCause) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(0, Conduct::kEvaluates);
  job.Run(Seconds{20});
  job.Do(3, Conduct::kStopped);
  EXPECT_FALSE(IsCertain(job.Until(Seconds{20}, IsCertain)));
  EXPECT_EQ(job.Tick().findings.front().syndrome, Syndrome::kStopped);
  job.Do(0, Conduct::kSteps);  // now it is
  EXPECT_EQ(CertainSuspects(job.Until(Seconds{20}, IsCertain)), "3");
}

TEST(Hang, ABlockedRankIsNotBlamedWhileAnotherWorks) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Do(0, Conduct::kEvaluates);
  job.Do(1, Conduct::kBlocked);
  EXPECT_FALSE(IsCertain(job.Until(Seconds{120}, IsCertain)));
}

TEST(Hang, ADoneRankIsNotWaitedFor) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Finish(1);
  job.Do(2, Conduct::kStopped);
  EXPECT_EQ(CertainSuspects(job.Until(Seconds{10}, IsCertain)), "2");
}

TEST(Hang, TheFirstStepHasItsOwnLimit) {
  TestJob job(4, Seconds{50});
  EXPECT_FALSE(Named(job.Until(Seconds{25}, Named)));
  job.Do(0, Conduct::kEvaluates);  // a first evaluation, a compilation
  Verdict verdict = job.Until(Seconds{100}, Named);
  EXPECT_NEAR(ToSeconds(job.now()).value - 1000, 60, 1);
  EXPECT_FALSE(IsCertain(verdict));
}

// Fewer looks than steps: what the rank itself has counted tells how long one takes.
TEST(Hang, AFastJobThatHangsBetweenTwoLooksIsNamedSoon) {
  TestJob job(4, Seconds{0.02});
  job.Tick();
  ASSERT_GE(job.steps(), 3);
  job.Do(2, Conduct::kStopped);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{60}, verdict).value, 1.7, 0.15);
}

TEST(Hang, StepTimesSurviveAReset) {
  TestJob job(4, Seconds{0.2});
  job.Run(Seconds{30});
  job.Restart();
  job.Tick();
  job.Do(2, Conduct::kStopped);
  Verdict verdict;
  EXPECT_NEAR(TimeToCertainty(job, Seconds{60}, verdict).value, 2, 0.3);
}

TEST(Hang, TheOrderOfArrivalDoesNotMatter) {
  for (const Conduct fault : {Conduct::kStopped, Conduct::kBlocked, Conduct::kPythonLoop, Conduct::kEvaluates}) {
    TestJob job(4, Seconds{0.3}, 7);
    job.keep = true;
    job.Run(Seconds{15});
    job.Do(1, fault);
    job.Run(Seconds{40});
    std::mt19937 random(5);
    const Nanos now = job.now() - ToNanos({3.05});  // what came later must not count either
    HangDetector in_order(HangLimits{}, 4), shuffled(HangLimits{}, 4), without_later(HangLimits{}, 4);
    for (const RankSample& sample : job.samples) in_order.Add(sample);
    for (const StackSample& sample : job.stacks) in_order.Add(sample);
    std::shuffle(job.samples.begin(), job.samples.end(), random);
    std::shuffle(job.stacks.begin(), job.stacks.end(), random);
    for (const StackSample& sample : job.stacks) shuffled.Add(sample);
    for (const RankSample& sample : job.samples) shuffled.Add(sample);
    for (const StackSample& sample : job.stacks)
      if (sample.at <= now) without_later.Add(sample);
    for (const RankSample& sample : job.samples)
      if (sample.at <= now) without_later.Add(sample);
    const auto text = [&](const HangDetector& detector) {
      std::string all;
      for (const incident::Finding& finding : detector.At(now).findings) all += RenderJson(incident::ToJson(finding));
      return all;
    };
    EXPECT_FALSE(text(in_order).empty());
    EXPECT_EQ(text(in_order), text(shuffled));
    EXPECT_EQ(text(in_order), text(without_later));
  }
}

// Median and 95th percentile of 1..50 (nearest rank): 25 or 26, and 48.
TEST(StepTimes, ArePercentilesOfTheLastFiftySteps) {
  StepTimes times;
  Nanos end{1};
  for (int step = 0; step <= 70; ++step) {
    RankSample sample;
    end += ToNanos({static_cast<double>(step <= 20 ? 1000 : step - 20)});
    sample.at = sample.step_end = end;
    sample.step = step;
    times.Add(sample);
  }
  EXPECT_NEAR(times.At(end)->median.value, 25.5, 0.51);
  EXPECT_NEAR(times.At(end)->slow.value, 48, 1);
  EXPECT_FALSE(times.At(Nanos{5}).has_value());
}

TEST(StepTimes, SparseSamplesGiveMeans) {
  StepTimes times;
  for (int i = 0; i < 5; ++i) {
    RankSample sample;
    sample.step = int64_t{10} * i;
    sample.at = sample.step_end = Nanos{1 + i * 100'000'000LL};
    times.Add(sample);
  }
  EXPECT_NEAR(times.At(Nanos{1'000'000'000})->median.value, 0.01, 1e-6);
}

}  // namespace
}  // namespace lockstep::detect
