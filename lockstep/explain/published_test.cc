// The published analyses of real traces, met to the last digit (relative 1e-9). The data is not part of the project.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/explain/causes.h"
#include "lockstep/explain/compat.h"
#include "lockstep/explain/report.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_meta.h"

namespace lockstep::explain {
namespace {

using Json = nlohmann::ordered_json;

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
    differences.push_back(place + ": " + found.dump() + " instead of " + expected.dump());
  }
}

class Published : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = LOCKSTEP_DATA "/whatif";
    if (!std::filesystem::exists(folder_)) GTEST_SKIP() << "no traces in " << folder_;
    auto meta = trace::ReadStragglerMeta(Path("meta-{}.yaml"));
    ASSERT_TRUE(meta.ok()) << Message(meta.status());
    meta_ = *meta;
    trace::StragglerSink sink(meta_, {});
    const absl::Status read = trace::ReadStragglerCsv(Path("trace-{}.csv.gz"), sink);
    ASSERT_TRUE(read.ok()) << Message(read);
    EXPECT_TRUE(sink.Counters().empty());
    auto job = trace::BuildStragglerJob(sink.TakeRows(), meta_);
    ASSERT_TRUE(job.ok()) << Message(job.status());
    job_ = std::make_unique<trace::StragglerJob>(*std::move(job));
    analysis_ = std::make_unique<WhatIf>(*job_);
  }
  std::string Path(const std::string& pattern) const {
    return folder_ + "/" + fmt::format(fmt::runtime(pattern), GetParam());
  }
  void ExpectSame(const std::string& pattern, const Json& found) {
    std::ifstream file(Path(pattern));
    std::vector<std::string> differences;
    Compare(Json::parse(file), found, "", differences);
    EXPECT_TRUE(differences.empty()) << differences.size() << " differences, such as " << differences.front();
  }

  std::string folder_;
  trace::StragglerMeta meta_;
  std::unique_ptr<trace::StragglerJob> job_;
  std::unique_ptr<WhatIf> analysis_;
};

TEST_P(Published, Result) { ExpectSame("result-{}.json", CompatResult(*analysis_, meta_, kDecomposeThreshold)); }
TEST_P(Published, ResultWithLaunchDelays) { ExpectSame("result-{}-thr0.9.json", CompatResult(*analysis_, meta_, 0.9)); }
TEST_P(Published, LastStage) { ExpectSame("ms-{}.json", CompatStage(*analysis_, meta_)); }
TEST_P(Published, Workers) { ExpectSame("mw-{}.json", CompatWorkers(*analysis_, meta_)); }

// What the authors say of the two: in AR a background job slows the first worker; in SE sequence lengths differ, and
// the last stage, with the loss, is long.
TEST_P(Published, Causes) {
  const Causes causes = FindCauses(*job_, *analysis_, kStraggles);
  std::string named;
  for (const Cause& cause : causes.found) named += std::string(CauseName(cause.kind)) + " ";
  if (GetParam() == std::string("AR")) {
    EXPECT_EQ(named, "worker ");
    EXPECT_EQ(causes.found.at(0).suspects.at(0).rank, 0);
  } else {
    EXPECT_TRUE(named == "sequence_length stage " || named == "stage sequence_length ")
        << named;  // they cost nearly the same
  }
}
INSTANTIATE_TEST_SUITE_P(Traces, Published, testing::Values("AR", "SE"));

}  // namespace
}  // namespace lockstep::explain
