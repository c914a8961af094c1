// Of jobs that reduce gradients in buckets one behind the other, where a rank's clock is off, its tracer loses some
// buckets and counts the others from 0, or both: innocents aren't named, and who is to blame is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/explained.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr int kRanks = 4, kSteps = 6, kBuckets = 12;
constexpr double kForward = 0.5, kBackward = 1;

// s. Of one rank rows are lost, and of the same or another one the clock is off.
struct Case {
  double bucket, clock = 0, drift = 0;         // of the clock per step
  int first_lost = 0, last_lost = 0;           // of so many buckets
  bool each_step = true;                       // else steps 1 and 4
  std::optional<double> optimizer = {};        // how late that rank begins it
  double loads_late = 0, computes_longer = 0;  // rank 1
  int rank = 2;
  std::optional<int> off = {};  // whose clock it is; else that rank's
  int ranks = kRanks;
  std::vector<std::vector<int>> lost = {};  // buckets of each step
  double ends_later = 0;                    // so much its collectives seem to end, by what recorded them
};

std::string TextOf(const Case& one) {
  return fmt::format("buckets of {} s, clock of {} {}, drift {}, lost {} and {}{}, optimizer {}, rank 1 loads {} late",
                     one.bucket, one.off.value_or(one.rank), one.clock, one.drift, one.first_lost, one.last_lost,
                     one.each_step ? "" : " in two steps", one.optimizer.value_or(-1), one.loads_late);
}

Explained Of(const Case& one) {
  std::string rows = trace::kHeader;
  for (int step = 0; step < kSteps; ++step)
    for (int rank = 0; rank < one.ranks; ++rank) {
      const double own = 1 + (rank == one.off.value_or(one.rank) ? one.clock + one.drift * step : 0);
      const auto add = [&](const char* type, double begin, double end, int number, int microbatch) {
        rows += fmt::format("{0},0,{0},{1},{2},{3:.6f},{4:.6f},{5},{6},{7},{6}\n", rank, step, type, own + begin,
                            end - begin, number, microbatch < 0 ? -1 : 0, microbatch);
      };
      const double late = rank == 1 ? one.loads_late : 0, longer = rank == 1 ? one.computes_longer : 0;
      const double computed = late + kForward + kBackward + longer;
      const double all = one.loads_late + kForward + kBackward + one.computes_longer;
      add("forward-compute", late, late + kForward, 0, 0);
      add("backward-compute", late + kForward, computed, 0, 0);
      const bool loses = rank == one.rank && (one.each_step || step == 1 || step == 4);
      const int first = loses ? one.first_lost : 0, last = loses ? one.last_lost : 0;
      const double later = rank == one.rank ? one.ends_later : 0;
      for (int i = first, number = 0; i < kBuckets - last; ++i)
        if (!loses || one.lost.empty() || std::ranges::count(one.lost[static_cast<size_t>(step)], i) == 0)
          add("grads-reduce-scatter", i == 0 ? computed : all + i * one.bucket, all + (i + 1) * one.bucket + later,
              number++, -1);
      const double reduced = all + kBuckets * one.bucket + (rank == one.rank ? one.optimizer.value_or(0) : 0);
      if (one.optimizer) add("optimizer", reduced, reduced + 0.01, 0, -1);
    }
  const trace::StragglerMeta meta = trace::DataParallelMeta(one.ranks);
  trace::StragglerSink sink(meta, {});
  EXPECT_TRUE(ReadStragglerCsv(trace::WriteTrace(rows), sink).ok());
  return Explained(BuildStragglerJob(sink.TakeRows(), meta).value());
}

std::string NotesOf(const Json& report) { return report.contains("notes") ? OneLine(report["notes"]) : "[]"; }

Json ExpectNobody(const Case& one) {
  Json report = Of(one).report();
  EXPECT_THAT(report["causes"], IsEmpty()) << report["causes"];
  EXPECT_NEAR(report["slowdown"].get<double>(), 1, 0.02);
  EXPECT_NEAR(report["step_s"]["ideal"].get<double>(), kForward + kBackward + kBuckets * one.bucket, 0.02);
  return report;
}

void ExpectHealthy(const Case& one) {
  SCOPED_TRACE(TextOf(one));
  const Json report = ExpectNobody(one);
  EXPECT_THAT(report["verdict"].get<std::string>(), StartsWith("healthy"));
  EXPECT_NEAR(report["launch_slowdown"].get<double>(), 1, 0.03);
}

void ExpectOnly(const Case& one, const std::string& cause) {
  SCOPED_TRACE(TextOf(one));
  const Json report = Of(one).report();
  ASSERT_EQ(report["causes"].size(), 1U) << report["causes"];
  EXPECT_EQ(report["causes"][0]["cause"], cause);
  ASSERT_EQ(report["causes"][0]["suspects"].size(), 1U) << report["causes"];
  EXPECT_EQ(report["causes"][0]["suspects"][0]["rank"], 1);
}

TEST(LostNumbers, NobodyIsNamedWhereAWorkerLosesRowsInEachStep) {
  ExpectHealthy({.bucket = 0.3, .first_lost = 3});
  EXPECT_THAT(NotesOf(Of({.bucket = 0.3, .first_lost = 3}).report()), Not(HasSubstr("clocks")));
}

// Nothing tells of the clock, or of the numbers.
TEST(LostNumbers, NobodyIsNamedWhereRowsMayBeOfOtherOps) {
  for (const double clock : {0.12, 0.3, -0.12}) ExpectHealthy({.bucket = 0.3, .clock = clock, .first_lost = 3});
  for (const double clock : {0.002, 0.02, -0.02}) ExpectHealthy({.bucket = 0.005, .clock = clock, .first_lost = 3});
  // A bucket less it is nearer to right.
  ExpectHealthy({.bucket = 0.02, .clock = -0.012, .first_lost = 3});
}

// Of two workers that tell their clocks one is off: the third begins with the others as they are put right.
TEST(LostNumbers, NobodyIsNamedWhereRowsAreLostOfOneWorkerAndTheClockOfAnotherIsOff) {
  for (const double clock : {0.1, 0.3, -0.3})
    for (const int off : {0, 1})
      for (const bool optimizer : {false, true}) {
        Case one{.bucket = 0.005, .clock = clock, .first_lost = 3, .off = off, .ranks = 3};
        if (optimizer) one.optimizer = 0;
        ExpectHealthy(one);
      }
}

// Fewer are certain than it takes to call a clock off elsewhere, but they are all that there is.
TEST(LostNumbers, FewRowsTellTheClockOfAWorkerOfWhichTheOthersAreInDoubt) {
  Case one{.bucket = 0.005, .clock = 0.3, .lost = {{1, 4}, {1}, {1, 7}, {11}, {0}, {5, 6}}};
  ExpectHealthy(one);
  EXPECT_EQ(Of(one).report()["counters"].value("clocks_off", 0), 1);
  one.loads_late = 0.3;
  ExpectOnly(one, "data_loading");
}

// Some recorders take for the end of a collective what is none.
TEST(LostNumbers, AClockIsNotOffWhereStartsContradictEnds) {
  for (const double later : {0.1, -0.04})
    for (const int ranks : {2, 4, 8})
      for (const bool optimizer : {false, true}) {
        Case one{.bucket = 0.05, .rank = 1, .ranks = ranks, .ends_later = later};
        if (optimizer) one.optimizer = 0;
        SCOPED_TRACE(fmt::format("{}, {} ranks, ends {} later", TextOf(one), ranks, later));
        const Json report = Of(one).report();
        EXPECT_THAT(report["causes"], IsEmpty()) << report["causes"];
        EXPECT_FALSE(report["counters"].contains("clocks_off"));
      }
}

// It is later than its clock can be off.
TEST(LostNumbers, WhoLoadsLateIsNamedWhereItsOwnRowsMayBeOfOtherOps) {
  const Case late{.bucket = 0.005, .first_lost = 3, .loads_late = 0.3, .rank = 1};
  EXPECT_EQ(Of(late).report()["counters"].value("rows_left_as_numbered", 0), 54);
  ExpectOnly(late, "data_loading");
}

TEST(LostNumbers, NobodyIsNamedWhereTheOptimizerMayBeLate) {
  ExpectHealthy({.bucket = 0.05, .first_lost = 1, .optimizer = 0.05});
  // All of it is a late launch, as where no row is lost.
  for (const Case& one : {Case{.bucket = 0.3, .optimizer = 0.9}, Case{.bucket = 0.3, .first_lost = 3, .optimizer = 0.9},
                          Case{.bucket = 0.3, .last_lost = 3, .optimizer = 0.9}}) {
    SCOPED_TRACE(TextOf(one));
    EXPECT_NEAR(ExpectNobody(one)["launch_slowdown"].get<double>(), 6.0 / 5.1, 0.01);
  }
}

TEST(LostNumbers, TellsWhoseRowsMayBeOfOtherOps) {
  EXPECT_THAT(NotesOf(Of({.bucket = 0.3, .clock = 0.12, .first_lost = 3}).report()),
              AllOf(HasSubstr("54 rows of 1 of 4 workers may be of other ops than their seq_id says"),
                    HasSubstr("rank 2 (dp 2, stage 0) 9 in step 0, 9 in step 1, 9 in step 2 and 3 more steps"),
                    HasSubstr("of 1 of them no other row tells the clock"), Not(HasSubstr("the clocks of"))));
}

// In the two steps many numbers fit a clock between those of the steps around.
TEST(LostNumbers, TheClockOfAStepInDoubtIsThatOfTheNearestSteps) {
  const Case doubtful{.bucket = 0.005, .clock = 0.3, .drift = 0.02, .first_lost = 3, .each_step = false};
  EXPECT_EQ(Of(doubtful).report()["counters"].value("rows_left_as_numbered", 0), 18);
  ExpectHealthy(doubtful);
  Case late = doubtful;
  late.loads_late = 0.3;
  ExpectOnly(late, "data_loading");
}

// No transfer comes out below zero.
TEST(LostNumbers, NobodyIsNamedWhereAClockIsOffByLessThanACollectiveTakes) {
  for (const bool optimizer : {false, true})
    for (const double clock : {0.03, -0.03, 0.012}) {
      Case one{.bucket = 0.05, .clock = clock};
      if (optimizer) one.optimizer = 0;
      ExpectHealthy(one);
      EXPECT_EQ(Of(one).report()["counters"].value("clocks_off", 0), 1) << TextOf(one);
      one.loads_late = 0.3;
      ExpectOnly(one, "data_loading");
    }
}

// By 10 ms in the last steps, and by less in the first.
TEST(LostNumbers, AClockThatIsOffInSomeStepsIsPutRightInAll) {
  ExpectOnly({.bucket = 0.03, .clock = 0.007, .drift = 0.0008, .computes_longer = 0.3}, "worker");
}

}  // namespace
}  // namespace lockstep::explain
