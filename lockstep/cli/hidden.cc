#include <memory>

#include "lockstep/agent/replay_child.h"
#include "lockstep/agent/stacks.h"
#include "lockstep/agent/starter.h"
#include "lockstep/cli/commands.h"
#include "lockstep/drill/link_keeper.h"
#include "lockstep/schedule/slurm_driver.h"

namespace lockstep::cli {

void AddHidden(CLI::App& app, int& exit_code) {
  auto run_dir = std::make_shared<std::string>();
  CLI::App* starter = app.add_subcommand("starter", "The process that owns the workers of a run")->group("");
  starter->add_option("run_dir", *run_dir)->required();
  starter->callback([run_dir, &exit_code] { exit_code = agent::StarterMain(*run_dir); });

  auto pid = std::make_shared<int>(0);
  CLI::App* stacks = app.add_subcommand("stacks", "Native stacks of one process as JSON")->group("");
  stacks->add_option("pid", *pid)->required();
  stacks->callback([pid, &exit_code] { exit_code = agent::StacksMain(*pid); });

  app.add_subcommand("replay-ranks", "Ranks of a replay, as told on standard input")->group("")->callback([&exit_code] {
    exit_code = agent::ReplayRanksMain();
  });

  auto job = std::make_shared<std::string>();
  CLI::App* begin = app.add_subcommand("begin-now", "Lets a requeued job of Slurm begin at once")->group("");
  begin->add_option("job", *job)->required();
  begin->callback([job, &exit_code] { exit_code = schedule::BeginNowMain(*job); });

  CLI::App* cut = app.add_subcommand("cut-link", "Cuts off a process's network until its input ends")->group("");
  cut->add_option("pid", *pid)->required();
  cut->callback([pid, &exit_code] { exit_code = drill::LinkKeeperMain(*pid); });
}

}  // namespace lockstep::cli
