#include "lockstep/explain/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/file.h"
#include "lockstep/explain/causes.h"
#include "lockstep/synth/job.h"
#include "lockstep/trace/straggler_csv.h"
#include "lockstep/trace/straggler_meta.h"
#include "lockstep/trace/test_trace.h"

namespace lockstep::explain {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Seven jobs of 8 GPUs on the hosts a and b: in three of them the worker on b is slow; one is damaged.
class FleetTest : public testing::Test {
 protected:
  static constexpr int kJobs = 7;

  void SetUp() override {
    for (int i = 0; i < kJobs; ++i) Write(i);
    std::string& damaged = jobs_.back().trace;
    ASSERT_TRUE(WriteFileAtomically(damaged, ReadFile(damaged).value().substr(0, 200) + "x,y\n").ok());
  }

  void Write(int number) {
    const synth::Fault slow{.kind = synth::FaultKind::kWorker, .dp = 1, .stage = 0, .factor = 1.5};
    Write(number, 5, number < 3 ? std::vector{slow} : std::vector<synth::Fault>());
  }

  // s: between the reduction of gradients and the optimizer passes so much for which there is no row.
  void Write(int number, int steps, const std::vector<synth::Fault>& faults, float missed = 0) {
    const synth::JobShape shape{.dp = 2, .pp = 1, .tp = 4, .steps = steps};
    trace::StragglerMeta meta = synth::MetaOf(shape);
    meta.hosts = {"a", "b"};
    meta.day = number < 2 ? "2026-11-01" : "2026-11-02";
    trace::StragglerRows rows = synth::Generate(shape, faults, static_cast<uint64_t>(number) + 1).value();
    for (auto& piece : rows.pieces)
      for (trace::StragglerRow& row : piece)
        if (row.type == trace::OpType::kOptimizer) row.start += missed;
    const std::string stem = fmt::format("{}/", root_), end = fmt::format("-{}", number);
    ASSERT_TRUE(MakeDirectory(root_).ok());
    ASSERT_TRUE(trace::WriteStragglerCsv(stem + "trace" + end + ".csv", rows).ok());
    ASSERT_TRUE(trace::WriteStragglerMeta(stem + "meta" + end + ".yaml", meta).ok());
    jobs_.push_back(
        {stem + "trace" + end + ".csv", stem + "trace" + end + ".csv", stem + "meta" + end + ".yaml", {}, {}});
  }

  Json Run(Shard shard = {}, const std::string& out = "", int threads = 2) const {
    absl::StatusOr<Json> report =
        ExplainFleet(jobs_, {shard, out.empty() ? "" : root_ + "/" + out, threads, "version 1"});
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : Json();
  }

  const std::string root_ = trace::TempPath("fleet");
  std::vector<trace::JobFiles> jobs_;
};

TEST_F(FleetTest, SaysWhatTheJobsLostAndToWhom) {
  const Json report = Run();
  EXPECT_EQ(report["jobs"], kJobs);
  EXPECT_EQ(report["damaged"], 1);
  EXPECT_THAT(report["damaged_jobs"][0]["error"].get<std::string>(), HasSubstr("trace-6.csv:"));
  EXPECT_EQ(report["straggling"]["jobs"], 3);
  EXPECT_EQ(report["by_cause"][0]["cause"], "worker");
  EXPECT_EQ(report["by_cause"][0]["jobs"], 3);
  EXPECT_GT(report["by_cause"][0]["share"], 0.9);
  ASSERT_EQ(report["nodes"].size(), 1U);
  EXPECT_EQ(report["nodes"][0]["node"], "b");
  EXPECT_EQ(report["nodes"][0]["named_in"], 3);
  EXPECT_EQ(report["nodes"][0]["of_jobs"], 6);
  ASSERT_EQ(report["by_day"].size(), 2U);
  EXPECT_EQ(report["by_day"][0]["straggling"], 2);
  EXPECT_EQ(report["by_size"][0]["gpus"], "8-15");
  EXPECT_EQ(report["worst_jobs"].size(), 3U);
  EXPECT_EQ(report["by_cause"].back()["jobs"], 0) << "nothing that is worth a name";
  EXPECT_EQ(report["unclear"]["jobs"], 0);
  double sum = 0;
  for (const Json& cause : report["by_cause"]) sum += cause["gpu_hours"].get<double>();
  EXPECT_NEAR(sum, report["gpu_hours"]["wasted"].get<double>(), 1e-9);
  size_t jobs = 0;
  for (const Json& group : report["by_slowdown"]) jobs += group["jobs"].get<size_t>();
  EXPECT_EQ(jobs, kJobs - 1U);
}

TEST_F(FleetTest, TheWorstIsNamedWhereOneThatDoesNotStraggleWastesMore) {
  Write(kJobs, 300, {{.kind = synth::FaultKind::kWorker, .dp = 0, .factor = 1.03}});
  const Json report = Run();
  EXPECT_EQ(report["straggling"]["jobs"], 3);
  EXPECT_EQ(report["worst_jobs"].size(), 3U);
  EXPECT_GT(report["by_size"][0]["wasted_gpu_hours"], 2 * report["worst_jobs"][0]["wasted_gpu_hours"].get<double>());
}

TEST_F(FleetTest, AJobWhoseStepsBeginLateStraggles) {
  Write(kJobs, 60, {{.kind = synth::FaultKind::kDataLoading, .dp = 0, .seconds{1.5}}});
  const Json report = Run();
  EXPECT_EQ(report["straggling"]["jobs"], 4);
  ASSERT_EQ(report["worst_jobs"].size(), 4U);
  EXPECT_EQ(report["worst_jobs"][0]["first_cause"], "data_loading");
  EXPECT_LT(report["worst_jobs"][0]["slowdown"], kStraggles) << "it does not have the loading";
  EXPECT_GT(report["worst_jobs"][0]["lost"], 1 - 1 / kStraggles);
}

TEST_F(FleetTest, WhatTheReplayMissesIsCountedApart) {
  Write(kJobs, 60, {}, 1.5F);
  const Json report = Run();
  EXPECT_EQ(report["straggling"]["jobs"], 3);
  EXPECT_EQ(report["unclear"]["jobs"], 1);
  EXPECT_NEAR(report["unclear"]["gpu_hours"].get<double>(), 1.5 * 60 * 8 / 3600, 0.01);
}

TEST_F(FleetTest, ShardsJoinExactly) {
  const std::string alone = RenderJson(Run({}, "", 1));
  EXPECT_EQ(alone, RenderJson(Run({0, 1}, "one", 2)));
  const std::vector<int> order = {2, 0, 1};
  EXPECT_EQ(Run({order[0], 3}, "three")["waits_for_shards"], (Json{0, 1}));
  EXPECT_EQ(Run({order[1], 3}, "three")["waits_for_shards"], (Json{1}));
  EXPECT_EQ(alone, RenderJson(Run({order[2], 3}, "three")));
  EXPECT_EQ(alone, ReadFile(root_ + "/three/fleet.json").value());
  EXPECT_THAT(ReadFile(root_ + "/three/index.html").value(), HasSubstr("3 of 7 jobs straggle"));
}

TEST_F(FleetTest, GoesOnWhereItWasKilled) {
  const std::string report = RenderJson(Run({}, "out"));
  const std::string path = root_ + "/out/jobs-0-of-1.jsonl";
  const std::string lines = ReadFile(path).value();
  for (size_t cut = 0; cut < lines.size(); cut += 97) {
    ASSERT_TRUE(WriteFileAtomically(path, lines.substr(0, cut)).ok());
    ASSERT_EQ(report, RenderJson(Run({}, "out"))) << cut;
  }
  ASSERT_TRUE(WriteFileAtomically(path, lines.substr(0, lines.find("\"slowdown\":") + 11) + "7").ok());
  EXPECT_EQ(report, RenderJson(Run({}, "out"))) << "half a line";
}

TEST_F(FleetTest, LinesOfOtherFilesDoNotCount) {
  Run({}, "out");
  fs::last_write_time(jobs_[3].trace, fs::last_write_time(jobs_[3].trace) + std::chrono::seconds(5));
  EXPECT_EQ(Run({0, 2}, "out")["waits_for_shards"], (Json{1}));
  fs::remove(jobs_[3].trace);
  EXPECT_EQ(Run({}, "out")["damaged"], 2);
}

}  // namespace
}  // namespace lockstep::explain
