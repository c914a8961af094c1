#include "lockstep/node/kept_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

namespace lockstep::node {
namespace {

using testing::ElementsAre;

bool Nothing(const std::string&) { return false; }

TEST(KeptOptions, ComeBack) {
  RunOptions options;
  options.hang_limits = {.hang_limit = Seconds{3600},
                         .blocked_limit = Seconds{11},
                         .spin_limit = Seconds{31},
                         .first_step_limit = Seconds{61},
                         .least_stall = Seconds{3}};
  options.cluster = "slurm";
  options.standby_job = "standby.sh";
  options.standby_command = {"lockstep", "run", "--coordinator=a:1", "train.py"};
  options.plan_file = "/plans/a.json";
  options.inspections.nics = {"bond0"};
  options.inspections["disk_full"].threshold = 0.3;
  options.metrics_port = 9100;
  options.metrics_host = "::1";
  options.token_file = "/secret/token";
  options.webhook = "http://alerts.example/hook?key=1";
  options.stop_signals = {SIGUSR1};
  options.nodes.join_timeout = Seconds{5};
  RunOptions resumed;
  ASSERT_EQ(TakeKept(KeptOptions(options), Nothing, resumed), absl::OkStatus());
  EXPECT_EQ(KeptOptions(resumed), KeptOptions(options));
  EXPECT_EQ(resumed.hang_limits.hang_limit, Seconds{3600});
  EXPECT_EQ(resumed.standby_job, std::filesystem::current_path() / "standby.sh") << "it is resumed elsewhere, maybe";
  EXPECT_EQ(resumed.inspections, options.inspections) << "though the file be gone";
  EXPECT_EQ(resumed.standby_command, options.standby_command);
  EXPECT_THAT(resumed.stop_signals, ElementsAre(SIGUSR1));
}

TEST(KeptOptions, GiveWayToFlags) {
  RunOptions options, resumed;
  options.webhook = "http://before/";
  options.metrics_port = 9100;
  resumed.webhook = "http://now/";
  const auto given = [](const std::string& flag) { return flag == "--webhook"; };
  ASSERT_EQ(TakeKept(KeptOptions(options), given, resumed), absl::OkStatus());
  EXPECT_EQ(resumed.webhook, "http://now/");
  EXPECT_EQ(resumed.metrics_port, 9100);
}

TEST(KeptOptions, OfAnotherVersionStayAsTheyAre) {
  RunOptions resumed;
  const std::string before = KeptOptions(resumed);
  for (const char* kept : {"", "{}", R"({"unheard_of": 1})"}) {
    EXPECT_EQ(TakeKept(kept, Nothing, resumed), absl::OkStatus()) << kept;
    EXPECT_EQ(KeptOptions(resumed), before) << kept;
  }
  EXPECT_EQ(Message(TakeKept(R"({"inspect": "[disk_fool]"})", Nothing, resumed)),
            "inspect:1:2: disk_fool is not a known key; did you mean disk_full?");
  EXPECT_EQ(Message(TakeKept(R"({"webhook": 7})", Nothing, resumed)), "webhook is not what it should be: 7");
}

}  // namespace
}  // namespace lockstep::node
