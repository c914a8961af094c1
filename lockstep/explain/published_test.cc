// The published analyses of real traces, met to the last digit (relative 1e-9). The data is not part of the project.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/base/json_text.h"
#include "lockstep/explain/causes.h"
#include "lockstep/explain/compat.h"
#include "lockstep/explain/report.h"
#include "lockstep/explain/timeline.h"
#include "lockstep/trace/line_reader.h"
#include "lockstep/trace/straggler_file.h"
#include "lockstep/trace/straggler_meta.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

// Every leaf of `expected` that `found` has otherwise, as "a.b.c: 1 instead of 2".
void Compare(const Json& expected, const Json& found, const std::string& place, std::vector<std::string>& differences) {
  if (expected.is_object() && found.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      if (found.contains(key)) {
        Compare(value, found[key], place + "." + key, differences);
      } else {
        differences.push_back(place + "." + key + " is missing");
      }
    }
    if (found.size() != expected.size()) differences.push_back(place + " has other keys");
  } else if (expected.is_number() && found.is_number()) {
    const double a = expected.get<double>(), b = found.get<double>();
    if (std::abs(a - b) > 1e-9 * std::abs(a))
      differences.push_back(fmt::format("{}: {:.15g} instead of {:.15g}", place, b, a));
  } else if (expected != found) {
    differences.push_back(place + ": " + OneLine(found) + " instead of " + OneLine(expected));
  }
}

struct File {
  const char* job;
  const char* suffix;
};

class Published : public testing::TestWithParam<File> {
 protected:
  void SetUp() override {
    folder_ = LOCKSTEP_DATA "/whatif";
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "no traces in " << folder_;
    auto meta = trace::ReadStragglerMeta(Path("meta-{}.yaml"));
    ASSERT_TRUE(meta.ok()) << Message(meta.status());
    meta_ = *meta;
    auto job = trace::ReadStragglerJob(Path("trace-{}") + GetParam().suffix, meta_, {});
    if (job.status().code() == absl::StatusCode::kUnavailable) GTEST_SKIP() << Message(job.status());
    ASSERT_TRUE(job.ok()) << Message(job.status());
    EXPECT_TRUE(job->counters.empty());
    job_ = std::make_unique<trace::TracedJob>(*std::move(job));
    analysis_ = std::make_unique<WhatIf>(*job_);
  }
  std::string Path(const std::string& pattern) const {
    return folder_ + "/" + fmt::format(fmt::runtime(pattern), GetParam().job);
  }
  void ExpectSame(const std::string& pattern, const Json& found) {
    std::vector<std::string> differences;
    Compare(ParseJson(ReadFile(Path(pattern)).value()), found, "", differences);
    EXPECT_TRUE(differences.empty()) << differences.size() << " differences, such as " << differences.front();
  }

  std::string folder_;
  trace::StragglerMeta meta_;
  std::unique_ptr<trace::TracedJob> job_;
  std::unique_ptr<WhatIf> analysis_;
};

TEST_P(Published, Result) { ExpectSame("result-{}.json", CompatResult(*analysis_, meta_, kDecomposeThreshold)); }
TEST_P(Published, ResultWithLaunchDelays) { ExpectSame("result-{}-thr0.9.json", CompatResult(*analysis_, meta_, 0.9)); }
TEST_P(Published, LastStage) { ExpectSame("ms-{}.json", CompatStage(*analysis_, meta_)); }
TEST_P(Published, Workers) { ExpectSame("mw-{}.json", CompatWorkers(*analysis_)); }

// What the authors say of the two: in AR a background job slows the first worker; in SE sequence lengths differ, and
// the last stage, with the loss, is long.
TEST_P(Published, Causes) {
  const Causes causes = FindCauses(*job_, *analysis_);
  std::string named;
  for (const Cause& cause : causes.found) named += std::string(CauseName(cause.kind)) + " ";
  if (GetParam().job == std::string("AR")) {
    EXPECT_EQ(named, "worker ");
    EXPECT_EQ(causes.found.at(0).suspects.at(0).rank, 0);
  } else {
    EXPECT_TRUE(named == "sequence_length stage " || named == "stage sequence_length ")
        << named;  // they cost nearly the same
  }
}

using Slices = std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, std::pair<double, double>>;

// {(name, rank, step, sequence): (begin, duration)}, us.
Slices SlicesOf(const std::string& path, const std::function<int64_t(const Json& event)>& rank_of) {
  std::string text;
  trace::LineReader lines = trace::LineReader::Open(path).value();
  while (lines.Next()) text += lines.line();
  Slices slices;
  const Json document = ParseJson(text);
  for (const Json& event : document.is_array() ? document : document.at("traceEvents"))
    if (event.at("ph") == "X")
      slices[{event.at("name").get<std::string>(), rank_of(event), event.at("args").at("step").get<int64_t>(),
              event.at("args").at("seq_id").get<int64_t>()}] = {event.at("ts").get<double>(),
                                                                event.at("dur").get<double>()};
  return slices;
}

TEST_P(Published, IdealTimeline) {
  if (GetParam().suffix != std::string(".csv.gz")) {  // the same job has the same timeline, which takes long to compare
    const trace::TracedJob same = trace::ReadStragglerJob(Path("trace-{}.csv.gz"), meta_, {}).value();
    EXPECT_EQ(job_->starts, same.starts);
    EXPECT_EQ(job_->transfers, same.transfers);
    EXPECT_EQ(job_->delays, same.delays);
    EXPECT_EQ(job_->ranks, same.ranks);
    return;
  }
  constexpr int64_t kTheirThreads = 5;  // per rank
  const Slices expected = SlicesOf(Path("ideal-timeline-{}.json.gz"),
                                   [](const Json& event) { return event.at("tid").get<int64_t>() / kTheirThreads; });
  const std::string folder = trace::TempPath("timelines");
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(WriteTimelines(folder, *job_, *analysis_, ChooseSlices(*job_, *analysis_)).ok());
  const Slices found = SlicesOf(folder + "/timeline-ideal.json.gz",
                                [](const Json& event) { return event.at("args").at("rank").get<int64_t>(); });
  ASSERT_EQ(found.size(), expected.size());
  double furthest = 0;  // us
  for (const auto& [key, slice] : expected) {
    const auto same = found.find(key);
    ASSERT_NE(same, found.end()) << std::get<0>(key) << " of rank " << std::get<1>(key);
    furthest =
        std::max({furthest, std::abs(same->second.first - slice.first), std::abs(same->second.second - slice.second)});
  }
  EXPECT_LT(furthest, 1);
}

INSTANTIATE_TEST_SUITE_P(Traces, Published,
                         testing::Values(File{"AR", ".csv.gz"}, File{"AR", ".parquet"}, File{"SE", ".csv.gz"},
                                         File{"SE", ".parquet"}),
                         [](const auto& file) {
                           return std::string(file.param.job) + (file.param.suffix[1] == 'c' ? "Csv" : "Parquet");
                         });

}  // namespace
}  // namespace lockstep::explain
