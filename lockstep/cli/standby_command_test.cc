#include "lockstep/cli/standby_command.h"

#include <gmock/gmock.h>

namespace lockstep::cli {
namespace {

using testing::ElementsAre;

TEST(StandbyCommand, KeepsWhatIsNotOfThisNode) {
  CLI::App app;
  CLI::App* run = app.add_subcommand("run", "");
  std::string text;
  bool on = false, preload = true;
  run->add_option("--nproc-per-node,--nproc_per_node", text);
  run->add_option("--checkpoint-dir", text);
  run->add_option("--node-rank,--node_rank", text);
  run->add_option("--nnodes", text);
  run->add_option("--cluster", text);
  run->add_option("--metrics-port", text);
  run->add_option("--python", text);
  run->add_flag("-m,--module", on);
  run->add_flag("--no-python", on);
  run->add_flag("!--no-preload", preload);
  run->prefix_command();
  app.parse(
      "run --nproc_per_node 2 --checkpoint-dir '/a b' --node-rank 0 --nnodes 2 --cluster slurm --metrics-port 94 "
      "-m --no-preload train.main --steps 5 --nnodes 9",
      false);
  const std::vector<std::string> command = StandbyCommand(*run, "n1:29400");
  EXPECT_THAT(std::vector(command.begin() + 1, command.end()),
              ElementsAre("--nproc-per-node=2", "--checkpoint-dir=/a b", "--module", "--no-preload",
                          "--coordinator=n1:29400", "train.main", "--steps", "5", "--nnodes", "9"));
  EXPECT_TRUE(command.front().ends_with("/cli_standby_command_test")) << command.front();
}

// `run` takes one away right behind the script (torchrun_words.h).
TEST(StandbyCommand, LeavesTheScriptItsMarks) {
  CLI::App app;
  CLI::App* run = app.add_subcommand("run", "");
  run->prefix_command();
  app.parse("run train.py -- x", false);
  const std::vector<std::string> command = StandbyCommand(*run, "n1:29400");
  EXPECT_THAT(std::vector(command.begin() + 1, command.end()),
              ElementsAre("--coordinator=n1:29400", "train.py", "--", "--", "x"));
}

}  // namespace
}  // namespace lockstep::cli
