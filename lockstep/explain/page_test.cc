#include "lockstep/explain/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/explain/heatmap.h"
#include "lockstep/explain/report.h"
#include "lockstep/synth/job.h"
#include "lockstep/trace/straggler_job.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

using testing::HasSubstr;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(Heatmap, HasACellPerValueAndNoneForNan) {
  const std::string svg =
      HeatmapSvg({"a < b", "x", "y", {"0", "1", "2"}, {"0"}, {1, 1.5, std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(Count(svg, "<title>"), 2U);
  EXPECT_THAT(svg, HasSubstr("a &lt; b"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#54000c\""));  // 1.5: the darkest
}

TEST(Page, ShowsWhatTheReportSays) {
  const synth::JobShape shape{.dp = 3, .pp = 2, .steps = 4};
  const trace::StragglerMeta meta = synth::MetaOf(shape);
  const synth::Fault slow{.kind = synth::FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.5};
  auto job = trace::BuildStragglerJob(synth::Generate(shape, {slow}, 1).value(), meta).value();
  job.counters.push_back({"absent_ops", 7});
  job.origin.host_of[5] = "node-b";
  job.clock_offsets[{1, 0}] = -0.5;
  const WhatIf analysis(job);
  const Json report = Report(job, analysis, FindCauses(job, analysis));
  const std::string folder = trace::TempPath("page");
  ASSERT_TRUE(WritePage(folder, report, StepsReport(analysis)).ok());
  const std::string page = ReadFile(folder + "/index.html").value();
  EXPECT_THAT(page, HasSubstr("<b>worker</b></td><td>dp 2, stage 1, rank 5, host node-b"));
  EXPECT_THAT(page, HasSubstr(fmt::format("S = {:.3f}", analysis.slowdown())));
  EXPECT_THAT(page, HasSubstr("the clocks of 1 of 6 workers were off"));
  EXPECT_THAT(page, HasSubstr("absent_ops</td><td class=\"number\">7"));
  EXPECT_EQ(Count(page, "http"), 3U) << "only the namespace of the pictures";
  EXPECT_EQ(Count(ReadFile(folder + "/heatmap-workers.svg").value(), "<title>"), 6U);
  EXPECT_EQ(Count(ReadFile(folder + "/heatmap-steps.svg").value(), "<title>"), 12U);
  EXPECT_EQ(ParseJson(ReadFile(folder + "/report.json").value()), report);
}

}  // namespace
}  // namespace lockstep::explain
