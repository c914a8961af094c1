#include "lockstep/cluster/job.h"

#include <gtest/gtest.h>

namespace lockstep::cluster {
namespace {

absl::StatusOr<Job> Parse(std::string_view text) { return ParseJob(text, "dir/job.toml", Presets(LOCKSTEP_PRESETS)); }
std::string ErrorOf(std::string_view text) { return Message(Parse(text).status()); }

TEST(Job, ReadsEverything) {
  const auto job = Parse(R"(
name = "demo"
model = "gpt-tiny"
cluster = "one-node-cpu"
[layout]
dp = 4
[run]
script = "../train.py"
args = ["--steps", "300"]
nproc_per_node = 4
start_method = "zygote"
hang_limit_s = 120
metrics_port = 0
checkpoint_memory_bytes = 8_000_000_000
nnodes = 2
coordinator = "10.0.0.1:29400"
checkpoint_dir = "saved"
checkpoint_interval_s = 60
checkpoint_keep = 3
checkpoint_flush_limit_s = 30
)");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->layout->WorldSize(), 4);
  EXPECT_EQ(job->cluster->Accelerators(), 4);
  EXPECT_EQ(job->run.script, "train.py");
  EXPECT_EQ(job->run.args.size(), 2U);
  EXPECT_EQ(job->run.hang_limit, Seconds{120});
  EXPECT_EQ(job->run.metrics_port, 0);
  EXPECT_EQ(job->run.checkpoint_memory, Bytes{8'000'000'000});
  EXPECT_EQ(job->run.nnodes, 2);
  EXPECT_EQ(job->run.coordinator, "10.0.0.1:29400");
  EXPECT_EQ(job->run.checkpoint_dir, "dir/saved");
  EXPECT_EQ(job->run.checkpoint_interval, Seconds{60});
  EXPECT_EQ(job->run.checkpoint_keep, 3);
  EXPECT_EQ(job->run.checkpoint_flush_limit, Seconds{30});
  EXPECT_FALSE(job->run.max_restarts.has_value());
  EXPECT_FALSE(job->run.observe_only.has_value());
}

TEST(Job, AModuleIsNoPath) {
  const auto job = Parse("name = 'j'\n[run]\nscript = 'package.train'\nmodule = true\n");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->run.script, "package.train");
}

TEST(Job, ErrorsNameThePlaceTheFoundAndTheExpected) {
  EXPECT_EQ(ErrorOf("name = 'j'\n[layout]\n  tp = 0\n"), "dir/job.toml:3:8: layout.tp must be at least 1, found 0");
  EXPECT_EQ(ErrorOf("name = 'j'\n[layout]\nep = 3\ndp = 4\n"),
            "dir/job.toml:3:6: layout.ep must divide dp, found ep 3 and dp 4");
  EXPECT_EQ(ErrorOf("name = 'j'\n[run]\nstart_method = 'fork'\n"),
            "dir/job.toml:3:16: run.start_method must be one of auto, zygote, exec, found \"fork\"");
  EXPECT_EQ(ErrorOf("name = 'j'\n[run]\nnproc_per_nod = 4\n"),
            "dir/job.toml:3:1: run.nproc_per_nod is not a known key; did you mean nproc_per_node?");
  EXPECT_EQ(ErrorOf("name = 'j'\n[run]\nmetrics_port = 70000\n"),
            "dir/job.toml:3:16: run.metrics_port must be between 0 and 65535, found 70000");
  EXPECT_EQ(ErrorOf("name = 'j'\n[run]\nwebhook = 'ftp://x'\n"),
            "dir/job.toml:3:11: run.webhook must begin with http:// or https://, found \"ftp://x\"");
  EXPECT_EQ(ErrorOf("[run]\n"), "dir/job.toml:1:1: name is missing");
  EXPECT_EQ(ErrorOf("name = 'j'\nmodel = 'lama3-8b'\n"),
            "dir/job.toml:2:9: model: \"lama3-8b\" is not among the models; did you mean llama3-8b?");
}

TEST(Job, TheLayoutMustFitClusterAndModel) {
  EXPECT_EQ(ErrorOf("name = 'j'\ncluster = 'one-node-cpu'\n[layout]\ndp = 8\n"),
            "dir/job.toml:3:1: layout needs 8 ranks, but one-node-cpu has 4 accelerators");
  EXPECT_EQ(ErrorOf("name = 'j'\nmodel = 'llama3-8b'\n[layout]\npp = 3\n"),
            "dir/job.toml:3:1: layout splits 32 layers of llama3-8b over pp 3 * vpp 1: the product must divide them");
}

TEST(Job, AMissingFileIsNamed) {
  EXPECT_EQ(Message(ReadJob("/nowhere/job.toml", Presets("")).status()),
            "/nowhere/job.toml: No such file or directory");
}

}  // namespace
}  // namespace lockstep::cluster
