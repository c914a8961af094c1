#include "lockstep/explain/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/json_text.h"
#include "lockstep/explain/test_job.h"
#include "lockstep/trace/line_reader.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kSlowDp = 5, kSlowStep = 3;

// Of 8 ranks one is slow, in each of 12 steps and in one of them more so.
class Timelines : public testing::Test {
 protected:
  Timelines()
      : job_(JobOf(synth::Generate(shape_,
                                   {{.kind = synth::FaultKind::kWorker, .dp = kSlowDp, .stage = 0, .factor = 1.3},
                                    {.kind = synth::FaultKind::kTransientWorker,
                                     .dp = kSlowDp,
                                     .stage = 1,
                                     .factor = 1.8,
                                     .first_step = kSlowStep,
                                     .last_step = kSlowStep}},
                                   1)
                       .value(),
                   shape_)),
        analysis_(job_) {}

  struct Seen {
    std::set<int64_t> steps, dps;
    size_t slices = 0;
  };
  Seen Write(const TimelineChoice& choice, const char* kind = "original") const {
    const std::string folder = trace::TempPath("timelines");
    std::filesystem::create_directories(folder);
    EXPECT_TRUE(WriteTimelines(folder, job_, analysis_, choice).ok());
    std::string text;
    trace::LineReader lines = trace::LineReader::Open(folder + "/timeline-" + kind + ".json.gz").value();
    while (lines.Next()) text += lines.line();
    Seen seen;
    double begin = std::numeric_limits<double>::max();
    const Json document = ParseJson(text);
    for (const Json& event : document.at("traceEvents")) {
      seen.dps.insert(event.at("pid").get<int64_t>());
      if (event.at("ph") != "X") continue;
      ++seen.slices;
      seen.steps.insert(event.at("args").at("step").get<int64_t>());
      begin = std::min(begin, event.at("ts").get<double>());
    }
    EXPECT_LT(begin, 1e6) << "the first step that is there is at the begin";
    return seen;
  }

  const synth::JobShape shape_{.dp = 8, .pp = 2, .microbatches = 4, .steps = 12};
  const trace::TracedJob job_;
  const WhatIf analysis_;
};

TEST_F(Timelines, OfASmallJobAllIsThere) {
  const TimelineChoice choice = ChooseSlices(job_, analysis_);
  EXPECT_THAT(choice.left_out, IsEmpty());
  const Seen seen = Write(choice);
  EXPECT_THAT(seen.steps, SizeIs(12));
  EXPECT_THAT(seen.dps, SizeIs(8));
}

TEST_F(Timelines, OfALargerOneTheSlowestStepsAndAsManyNearTheMedian) {
  const size_t all = Write(ChooseSlices(job_, analysis_)).slices;
  const TimelineChoice choice = ChooseSlices(job_, analysis_, all / 3);
  const Seen seen = Write(choice);
  EXPECT_EQ(seen.slices, all / 3);
  EXPECT_THAT(seen.steps, AllOf(SizeIs(4), Contains(job_.steps[kSlowStep])));
  EXPECT_THAT(seen.dps, SizeIs(8));
  EXPECT_THAT(choice.left_out, AllOf(HasSubstr("timelines have 4 of 12 steps ("), HasSubstr("--steps chooses"),
                                     HasSubstr(fmt::format("all would be {} slices", all))));
  EXPECT_LE(Write(choice, "ideal").slices, all / 3);
}

TEST_F(Timelines, OfAVeryLargeOneTheCostliestRanksToo) {
  const size_t all = Write(ChooseSlices(job_, analysis_)).slices;
  const TimelineChoice choice = ChooseSlices(job_, analysis_, all / 24);  // two steps, of each a quarter
  const Seen seen = Write(choice);
  EXPECT_LE(seen.slices, all / 24);
  EXPECT_THAT(seen.steps, AllOf(SizeIs(2), Contains(job_.steps[kSlowStep])));
  EXPECT_THAT(seen.dps, AllOf(SizeIs(2), Contains(kSlowDp)));
  EXPECT_THAT(choice.left_out, AllOf(HasSubstr("2 of 12 steps ("), HasSubstr(" and 2 of 8 data-parallel ranks (")));
}

TEST_F(Timelines, TheSlowestAndOneToCompareItWithAreAlwaysThere) {
  const TimelineChoice choice = ChooseSlices(job_, analysis_, 1);
  EXPECT_THAT(choice.steps, AllOf(SizeIs(2), Contains(kSlowStep)));
  EXPECT_THAT(choice.dps, AllOf(SizeIs(2), Contains(kSlowDp)));
}

// Few steps of many microbatches, which are the slowest, among many of few.
TEST(TimelinesOfUnevenSteps, HaveNoMoreSlicesThanFit) {
  constexpr int kSteps = 24, kLong = 8, kMicrobatches = 64;
  std::string rows = trace::kHeader;
  for (int step = 0; step < kSteps; ++step)
    for (int rank = 0; rank < 2; ++rank) {
      const int count = step % kLong == 0 ? kMicrobatches : 2;
      for (int i = 0; i < count; ++i)
        rows += fmt::format("{0},0,{0},{1},forward-compute,{2},1,{3},0,{3},0\n", rank, step, i, i);
      rows += fmt::format("{0},0,{0},{1},grads-reduce-scatter,{2},1,0,-1,-1,-1\n", rank, step, count);
    }
  const trace::StragglerMeta meta = trace::DataParallelMeta(2);
  trace::StragglerSink sink(meta, {});
  ASSERT_TRUE(ReadStragglerCsv(trace::WriteTrace(rows), sink).ok());
  const trace::TracedJob job = BuildStragglerJob(sink.TakeRows(), meta).value();
  const WhatIf analysis(job);
  constexpr size_t kMost = 2 * (kMicrobatches + 1) + 5 * 2 * 3;
  const TimelineChoice choice = ChooseSlices(job, analysis, kMost);
  size_t slices = 0;
  for (const size_t step : choice.steps) slices += step % kLong == 0 ? 2 * (kMicrobatches + 1) : 2 * 3;
  EXPECT_LE(slices, kMost);
  EXPECT_THAT(choice.steps, AllOf(Contains(0), SizeIs(2)));
  EXPECT_THAT(choice.dps, SizeIs(2));
}

}  // namespace
}  // namespace lockstep::explain
