// Numbers of collectives: kept where they fit the ends of their group, else those that fit.
#include "lockstep/trace/row_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/trace/test_trace.h"

namespace lockstep::trace {
namespace {

// Jobs of one stage: 8 steps of 4 ranks, which reduce gradients in buckets one behind the other. In step 3 rank 0 is
// late, and rank 2 lacks some buckets; its clock may be off in all steps.
struct Case {
  double late = 0, bucket;  // s
  int buckets;
  int first = 0, last = 0;  // so many are lost, and the others counted anew
  double clock = 0;         // s
  bool gathers = false;     // parameters, before it computes
  // In all steps rank 2 lacks some.
  bool each_step = false;
  bool optimizer = true;
  double drift = 0, leap = 0;  // s: of its clock per step; from the late step on
  int ranks = 4;
  double optimizer_late = 0;  // s: that of rank 2, in each step
};

constexpr int kSteps = 8, kLateStep = 3;
constexpr double kForward = 0.5, kBackward = 1;

// Numbers as they are in the file.
std::string RowsOf(const Case& one) {
  std::string rows;
  for (int step = 0; step < kSteps; ++step)
    for (int rank = 0; rank < one.ranks; ++rank) {
      const double clock = one.clock + one.drift * step + (step < kLateStep ? 0 : one.leap);
      const double own = 1 + (rank == 2 ? clock : 0), late = step == kLateStep ? one.late : 0;
      const auto add = [&](const char* type, double start, double end, int number, int microbatch) {
        rows += fmt::format("{0},0,{0},{1},{2},{3:.6f},{4:.6f},{5},0,{6},{6}\n", rank, step, type, start + own,
                            end - start, number, microbatch);
      };
      const double computed = kForward + kBackward + (rank == 0 ? late : 0), all = kForward + kBackward + late;
      if (one.gathers) add("params-all-gather", -0.2, 0, 0, -1);
      add("forward-compute", 0, kForward, 0, 0);
      add("backward-compute", kForward, computed, 0, 0);
      const bool lacks = (one.each_step || step == kLateStep) && rank == 2;
      const int from = lacks ? one.first : 0, to = one.buckets - (lacks ? one.last : 0);
      for (int i = from; i < to; ++i) {
        const double begin = i == 0 ? computed : all + one.bucket * i;
        add("grads-reduce-scatter", begin, all + one.bucket * (i + 1), i - from, -1);
      }
      const double reduced = all + one.bucket * one.buckets;
      const double begin = reduced + (rank == 2 ? one.optimizer_late : 0);
      if (one.optimizer) add("optimizer", begin, begin + 0.01, 0, -1);
    }
  return rows;
}

uint64_t CounterOf(const TracedJob& job, std::string_view name) {
  const auto found = std::ranges::find(job.counters, name, &Counter::name);
  return found == job.counters.end() ? 0 : found->count;
}

TracedJob JobOf(const std::string& rows, int dp, size_t threads = 1) {
  const StragglerMeta meta = DataParallelMeta(dp);
  StragglerSink sink(meta, {});
  const absl::Status read = ReadStragglerCsv(WriteTrace(kHeader + rows), sink);
  EXPECT_TRUE(read.ok()) << Message(read);
  return BuildStragglerJob(sink.TakeRows(), meta, threads).value();
}

std::string TextOf(const Case& one) {
  return fmt::format(
      "late {}, {} buckets of {} s, lost {} and {}{}, clock {}, drift {}, leap {}{}{}, optimizer {} late", one.late,
      one.buckets, one.bucket, one.first, one.last, one.each_step ? " in each step" : "", one.clock, one.drift,
      one.leap, one.gathers ? ", gathers" : "", one.optimizer ? "" : ", no optimizer", one.optimizer_late);
}

void ExpectRenumbered(const Case& one, uint64_t rows) {
  const TracedJob job = JobOf(RowsOf(one), one.ranks);
  EXPECT_EQ(CounterOf(job, "rows_renumbered"), rows) << TextOf(one);
  EXPECT_EQ(CounterOf(job, "rows_left_as_numbered"), 0) << TextOf(one);
  EXPECT_EQ(CounterOf(job, "lost_rows_put_back"), (one.each_step ? kSteps : 1) * (one.first + one.last)) << TextOf(one);
  if (one.clock != 0 || one.drift != 0 || one.leap != 0) return;
  EXPECT_EQ(CounterOf(job, "clocks_off"), 0) << TextOf(one);
}

void ExpectLeft(const Case& one, uint64_t rows) {
  const TracedJob job = JobOf(RowsOf(one), one.ranks);
  EXPECT_EQ(CounterOf(job, "rows_renumbered"), 0) << TextOf(one);
  EXPECT_EQ(CounterOf(job, "rows_left_as_numbered"), rows) << TextOf(one);
  EXPECT_EQ(std::ranges::count(job.put_back, PutBack::kDoubtful), rows) << TextOf(one);
  EXPECT_EQ(CounterOf(job, "clocks_off"), one.leap == 0 ? 0 : 1) << TextOf(one);  // the whole steps tell
}

// The kept ones begin when the slowest rank lets them: late by as much as some buckets take.
TEST(NumbersOfCollectives, AreKeptWhereTheirGroupEndsWithThem) {
  for (const bool gathers : {false, true})
    for (const double clock : {0.0, 0.2, -0.3}) {
      ExpectRenumbered({0.9, 0.3, 12, 0, 3, clock, gathers}, 0);
      ExpectRenumbered({0.3, 0.1, 12, 0, 3, clock, gathers}, 0);
      ExpectRenumbered({0.03, 0.02, 12, 0, 1, clock, gathers}, 0);
    }
}

TEST(NumbersOfCollectives, AreThoseThatTheirGroupEndsWith) {
  for (const bool gathers : {false, true})
    for (const double clock : {0.0, 0.2, -0.3})
      for (const double late : {0.0, 0.3, 0.9}) {
        ExpectRenumbered({late, 0.3, 12, 3, 0, clock, gathers}, 9);
        ExpectRenumbered({late, 0.3, 12, 2, 1, clock, gathers}, 9);
        ExpectRenumbered({late, 0.3, 2, 1, 0, clock, gathers}, 1);
      }
}

// The optimizer begins when the last has ended. Without one clocks are taken to agree.
TEST(NumbersOfCollectives, AreThoseThatTheirGroupEndsWithWhereAllStepsLackSome) {
  for (const int ranks : {4, 16})
    for (const double late : {0.0, 0.9}) {
      for (const bool gathers : {false, true})
        for (const double clock : {0.0, 0.2, -0.3})
          ExpectRenumbered({.late = late,
                            .bucket = 0.3,
                            .buckets = 12,
                            .first = 3,
                            .clock = clock,
                            .gathers = gathers,
                            .each_step = true,
                            .ranks = ranks},
                           9 * kSteps);
      ExpectRenumbered({.late = late,
                        .bucket = 0.3,
                        .buckets = 12,
                        .first = 1,
                        .each_step = true,
                        .optimizer = false,
                        .ranks = ranks},
                       11 * kSteps);
    }
}

TEST(NumbersOfCollectives, AreKeptWhereTheClockLeapsByABucket) {
  ExpectRenumbered({.bucket = 0.1, .buckets = 12, .last = 1, .leap = 0.1}, 0);
  ExpectRenumbered({.bucket = 0.1, .buckets = 12, .last = 2, .leap = 0.2}, 0);
}

TEST(NumbersOfCollectives, AreToldOfAClockThatDrifts) {
  for (const bool each_step : {false, true})
    ExpectRenumbered({.bucket = 0.1, .buckets = 12, .first = 3, .each_step = each_step, .drift = 0.02},
                     each_step ? 9 * kSteps : 9);
  ExpectRenumbered({.bucket = 0.1, .buckets = 12, .first = 3, .optimizer = false, .drift = 0.02}, 9);
}

// The clock leapt, or other rows were lost: nothing tells.
TEST(NumbersOfCollectives, AreLeftWhereTwoAnswersFit) {
  ExpectLeft({.bucket = 0.1, .buckets = 12, .last = 1, .optimizer = false, .leap = 0.1}, 11);
  ExpectLeft({.bucket = 0.3, .buckets = 12, .first = 3, .clock = 0.1, .each_step = true, .optimizer = false},
             9 * kSteps);
}

// By the optimizer alone the clock is a bucket ahead and none was lost, or the optimizer is late and one was.
TEST(NumbersOfCollectives, AreLeftWhereTheOptimizerMayBeLate) {
  ExpectLeft({.bucket = 0.05, .buckets = 12, .first = 1, .each_step = true, .optimizer_late = 0.05}, 11 * kSteps);
  ExpectLeft({.bucket = 0.3, .buckets = 12, .first = 3, .each_step = true, .optimizer_late = 0.9}, 9 * kSteps);
}

// Other steps tell how late it usually is, or that the clock is right.
TEST(NumbersOfCollectives, AreToldWhereTheOptimizerIsLate) {
  ExpectRenumbered({.bucket = 0.05, .buckets = 12, .first = 1, .optimizer_late = 0.05}, 11);
  ExpectRenumbered({.bucket = 0.05, .buckets = 12, .first = 1, .clock = 0.2, .optimizer_late = 0.05}, 11);
}

// Rank 2 has no row that rank 0 lacks, rank 0 has the last ones but not all.
TEST(NumbersOfCollectives, AreLeftWhereNoRankOfTheStepHasAll) {
  std::string rows = RowsOf({.bucket = 0.3, .buckets = 12, .first = 3, .ranks = 3});
  for (const int rank : {0, 1}) {
    const size_t row = rows.find(fmt::format("{0},0,{0},{1},grads-reduce-scatter", rank, kLateStep));
    rows.erase(row, rows.find('\n', row) + 1 - row);
  }
  const TracedJob job = JobOf(rows, 3);
  EXPECT_EQ(CounterOf(job, "rows_renumbered"), 0);
  EXPECT_EQ(CounterOf(job, "rows_left_as_numbered"), 9);
}

TEST(NumbersOfCollectives, AreTheSameOnAnyNumberOfThreads) {
  for (const double clock : {0.0, 0.1}) {
    const std::string rows =
        RowsOf({.late = 0.9, .bucket = 0.3, .buckets = 12, .first = 3, .clock = clock, .each_step = true});
    const TracedJob one = JobOf(rows, 4), three = JobOf(rows, 4, 3);
    EXPECT_EQ(one.starts, three.starts);
    EXPECT_EQ(one.put_back, three.put_back);
    EXPECT_EQ(CounterOf(one, "rows_renumbered"), CounterOf(three, "rows_renumbered"));
  }
}

// Rows times lacking ones would take minutes and gigabytes.
TEST(NumbersOfCollectives, AreLeftWhereThereAreTooMany) {
  const auto rows = [](int count, int kept) {
    std::string text;
    for (int rank = 0; rank < 2; ++rank) {
      const std::string begin = fmt::format("{0},0,{0},0,", rank);
      text += begin + "forward-compute,1,1,0,0,0,0\n" + begin + "backward-compute,2,2,0,0,0,0\n" + begin +
              "params-all-gather,0,1,0,0,-1,-1\n" + begin + "optimizer,10,0.1,0,0,-1,-1\n";
      const int from = rank == 0 ? 0 : count - kept;
      for (int i = from; i < count; ++i)
        text += begin + fmt::format("grads-reduce-scatter,{},0.0002,{},0,-1,-1\n", 4 + 0.0005 * i, i - from);
    }
    return text;
  };
  const TracedJob some = JobOf(rows(4000, 2000), 2), many = JobOf(rows(9000, 4500), 2);
  EXPECT_EQ(CounterOf(some, "rows_renumbered"), 2000);
  EXPECT_EQ(CounterOf(some, "rows_left_as_numbered"), 0);
  EXPECT_EQ(CounterOf(many, "rows_renumbered"), 0);
  EXPECT_EQ(CounterOf(many, "rows_left_as_numbered"), 4500);
}

}  // namespace
}  // namespace lockstep::trace
