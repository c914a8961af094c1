#include "lockstep/agent/spec.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/test_folder.h"

namespace lockstep::agent {
namespace {

TEST(RunSpec, ComesBackFromItsJson) {
  RunSpec spec;
  spec.job = "j";
  spec.command = {"train.py", "--x"};
  spec.ranks = 3;
  spec.start_method = StartMethod::kExec;
  spec.checkpoint_budget = Bytes{5};
  spec.allow_drill = true;
  spec.watching = R"({"webhook":"http://x/"})";
  spec.feeds = {{"/data/photos", "photos"}, {"/data/x.tar", "x", {"--cache", "7M"}}};
  spec.torchrun = {.run_id = "job7",
                   .role = "trainer",
                   .master_addr = "localhost",
                   .master_port = 29500,
                   .no_python = true,
                   .virtual_local_rank = true,
                   .log_dir = "/logs/x",
                   .streams = {{3, 1, false}}};
  const auto back = RunSpecFromJson(RenderJson(ToJson(spec)));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(spec));
  EXPECT_EQ(back->feeds, spec.feeds);
  EXPECT_EQ(back->watching, spec.watching);
}

TEST(RunSpec, ATornFileIsOneError) {
  EXPECT_EQ(Message(RunSpecFromJson("{\"job\": ").status()), "not a JSON object");
  EXPECT_EQ(Message(RunSpecFromJson("{}").status()), "job is missing");
  Json json = ToJson(RunSpec{});
  json["ranks"] = "two";
  EXPECT_EQ(Message(RunSpecFromJson(RenderJson(json)).status()), "ranks is not what it should be: \"two\"");
  const TestFolder run_dir;
  const std::string file = run_dir.Write("run.json", "{}");
  EXPECT_EQ(Message(ReadRunSpec(run_dir.path()).status()),
            file +
                ": damaged: job is missing; expected it as `lockstep run` wrote it: start a new run in "
                "another --run");
}

TEST(StartMethod, OnlyTheThreeNames) {
  EXPECT_EQ(*StartMethodFromName("zygote"), StartMethod::kZygote);
  EXPECT_EQ(Message(StartMethodFromName("x").status()),
            "--start-method must be auto, zygote or exec (or torchrun's spawn, fork or forkserver), found \"x\"");
}

}  // namespace
}  // namespace lockstep::agent
