#include <fmt/core.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/agent/local_groups.h"
#include "lockstep/agent/python.h"
#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/usage.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/detect/replay_report.h"
#include "lockstep/detect/simulated_groups.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {
namespace {

struct ReplayFlags {
  int machines = 0, ranks_per_machine = 1;
  std::string layout, python, logs;
  std::optional<int> pipelines;
  int layers = 4, steps = 3;
  detect::ReplayOdds odds;
  detect::ReplayLimits limits;
  double deadline_s = 60, per_run_s = 300;
  int ranks_at_once = 0;
  std::vector<std::string> simulated;
  bool simulate = false;
  uint64_t seed = 1;
  bool module = false, json = false;
};

// A folder for the logs of one replay, which goes with it unless the user named it.
class LogFolder {
 public:
  static absl::StatusOr<LogFolder> Make(const std::string& named) {
    if (!named.empty()) {
      LS_RETURN_IF_ERROR(MakeDirectory(named));
      return LogFolder(std::filesystem::absolute(named).string(), false);
    }
    std::string path = (std::filesystem::temp_directory_path() / "lockstep-replay-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) return Errno(errno, "{}", path);
    return LogFolder(path, true);
  }
  LogFolder(LogFolder&& other) noexcept : path_(std::move(other.path_)), goes_(std::exchange(other.goes_, false)) {}
  ~LogFolder() {
    std::error_code ignored;
    if (goes_) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  LogFolder(std::string path, bool goes) : path_(std::move(path)), goes_(goes) {}
  std::string path_;
  bool goes_;
};

// Machines of one pipeline: what tensor and pipeline parallelism need together.
absl::StatusOr<int> PipelineMachines(const ReplayFlags& flags) {
  if (flags.layout.empty()) return 1;
  LS_ASSIGN_OR_RETURN(const cluster::Layout layout, cluster::ParseLayout(flags.layout));
  const int world = flags.machines * flags.ranks_per_machine, model = layout.tp * layout.cp * layout.pp;
  if (layout.WorldSize() != world) {
    return InvalidArgument("layout \"{}\" has {} ranks, but {} machines of {} have {}", flags.layout,
                           layout.WorldSize(), flags.machines, flags.ranks_per_machine, world);
  }
  if (flags.ranks_per_machine % model == 0) return 1;
  if (model % flags.ranks_per_machine == 0) return model / flags.ranks_per_machine;
  return InvalidArgument("layout \"{}\": a pipeline of {} ranks fills no whole machines of {}", flags.layout, model,
                         flags.ranks_per_machine);
}

absl::Status Validate(const ReplayFlags& flags, const std::vector<std::string>& command) {
  if (flags.ranks_per_machine < 1) {
    return InvalidArgument("a machine must have at least 1 rank, found {}", flags.ranks_per_machine);
  }
  if (flags.layers < 1 || flags.steps < 1) {
    return InvalidArgument("a replay takes at least 1 layer and 1 step, found {} and {}", flags.layers, flags.steps);
  }
  if (!command.empty() && command.front().starts_with('-')) {
    return InvalidArgument("unknown option {}; options of `lockstep replay` come before the script", command.front());
  }
  if (flags.simulate && !command.empty()) {
    return InvalidArgument("--simulate runs nothing, but there is a script: {}", command.front());
  }
  if (!command.empty() && !flags.module && !std::filesystem::exists(command.front()))
    return NotFound("{}: there is no such script", command.front());
  return absl::OkStatus();
}

absl::StatusOr<agent::LocalReplay> LocalReplayOf(const ReplayFlags& flags, const std::vector<std::string>& command) {
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  LS_ASSIGN_OR_RETURN(const agent::PythonChoice python, agent::FindPython(flags.python));
  LS_ASSIGN_OR_RETURN(const std::string here, WorkingDirectory());
  agent::LocalReplay replay;
  replay.program = {python.path, installation.package_dir, here, command, flags.module};
  if (command.empty()) replay.program.command = {"lockstep._replay_model"}, replay.program.module = true;
  replay.ranks_per_machine = flags.ranks_per_machine;
  replay.layers = flags.layers;
  replay.steps = flags.steps;
  replay.deadline = {flags.deadline_s};
  replay.ranks_at_once = flags.ranks_at_once;
  if (replay.ranks_at_once == 0) replay.ranks_at_once = static_cast<int>(2 * std::thread::hardware_concurrency());
  replay.interrupted = Interrupted;
  if (isatty(STDERR_FILENO)) replay.note = [](const std::string& line) { fmt::print(stderr, "lockstep: {}\n", line); };
  return replay;
}

absl::StatusOr<detect::GroupTestResult> Search(const ReplayFlags& flags, const std::vector<std::string>& command) {
  LS_RETURN_IF_ERROR(Validate(flags, command));
  LS_ASSIGN_OR_RETURN(const int pipeline, PipelineMachines(flags));
  LS_ASSIGN_OR_RETURN(const detect::ReplayGrid grid,
                      detect::ChooseReplayGrid(flags.machines, pipeline, flags.pipelines));
  if (flags.simulate) {
    LS_ASSIGN_OR_RETURN(const auto faults, detect::ParseSimulatedFaults(flags.simulated, flags.machines));
    detect::SimulatedGroups groups(faults, flags.odds, Seconds{flags.per_run_s}, flags.seed);
    return detect::FindBadMachines(grid, flags.odds, flags.limits, groups);
  }
  LS_ASSIGN_OR_RETURN(const LogFolder folder, LogFolder::Make(flags.logs));
  LS_ASSIGN_OR_RETURN(agent::LocalReplay replay, LocalReplayOf(flags, command));
  replay.folder = folder.path();
  EndAtInterrupt();
  agent::LocalGroups groups(std::move(replay));
  LS_ASSIGN_OR_RETURN(detect::GroupTestResult result, detect::FindBadMachines(grid, flags.odds, flags.limits, groups));
  result.note = groups.note();
  return result;
}

int Replay(const ReplayFlags& flags, const std::vector<std::string>& command) {
  const absl::StatusOr<detect::GroupTestResult> result = Search(flags, command);
  if (!result.ok()) {
    PrintError(result.status());
    return result.status().code() == absl::StatusCode::kCancelled ? kExitNo : kExitBadInput;
  }
  PrintReport(detect::ReplayReport(*result), flags.json);
  return result->verdict.reproduced ? kExitNo : 0;
}

void DeclareFault(CLI::App& command, ReplayFlags& flags) {
  command.add_option("--reproduces", flags.odds.reproduces, "How often a run with a bad machine fails, at least")
      ->capture_default_str();
  command.add_option("--false-alarms", flags.odds.false_alarm, "How often one without fails all the same, at most")
      ->capture_default_str();
  command.add_option("--error", flags.odds.error, "With up to two bad machines, how often the answer may be wrong")
      ->capture_default_str();
  command.add_option("--confidence", flags.limits.confidence, "Rounds go on until the answer is as sure as that")
      ->capture_default_str();
  command.add_option("--rounds", flags.limits.rounds, "But for so many at most")->capture_default_str();
}

void DeclareSimulation(CLI::App& command, ReplayFlags& flags) {
  command
      .add_option_function<std::vector<std::string>>(
          "--simulate",
          [&flags](const std::vector<std::string>& faults) {
            flags.simulate = true;
            for (const std::string& fault : faults) {
              if (fault != "none") flags.simulated.push_back(fault);
            }
          },
          "Run nothing: these are bad, as 13 (a machine), 4-9 (the link between two) or none")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--run-s", flags.per_run_s, "Of a simulation: seconds that a run takes")
      ->capture_default_str()
      ->check(AboveZero());
  command.add_option("--seed", flags.seed, "Of a simulation")->capture_default_str();
}

void DeclareRuns(CLI::App& command, ReplayFlags& flags) {
  command.add_option("--layers", flags.layers, "Layers that the script is asked to shrink its model to")
      ->capture_default_str();
  command.add_option("--steps", flags.steps, "Training steps of a run")->capture_default_str();
  command.add_option("--deadline-s", flags.deadline_s, "A run that takes longer has failed")
      ->capture_default_str()
      ->check(AboveZero());
  command.add_option("--ranks-at-once", flags.ranks_at_once, "Processes at a time, at most; default: two per core")
      ->check(AboveZero());
  command.add_option("--logs", flags.logs, "Keep what the ranks print and report in this folder");
  command.add_option("--python", flags.python, "The interpreter; default: as for lockstep run");
  command.add_flag("-m,--module", flags.module, "SCRIPT is a module name, as in python -m");
}

}  // namespace

void AddReplay(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ReplayFlags>();  // lives as long as the callbacks of the parser
  CLI::App* command = app.add_subcommand(
      "replay", "Which machine is bad? Runs a small job on groups of machines, by rows and columns of a grid");
  command->add_option("--machines", flags->machines, "How many; here each is a group of processes")->required();
  command->add_option("--ranks-per-machine", flags->ranks_per_machine, "Processes of each")->capture_default_str();
  command->add_option("--layout", flags->layout,
                      "Of the job, as tp2,pp4,dp4: tensor and pipeline parallelism are kept");
  command->add_option("--pipelines", flags->pipelines, "So many in a group; default: as many as the grid allows");
  DeclareRuns(*command, *flags);
  DeclareFault(*command, *flags);
  DeclareSimulation(*command, *flags);
  command->add_flag("--json", flags->json, "One JSON document on stdout");
  command->formatter(std::make_shared<UsageWithScript>("[SCRIPT [ARGS...]]"));
  command->prefix_command();  // everything from SCRIPT on belongs to the script; without one, a model of our own runs
  command->footer(
      "Example: lockstep replay --machines 10000 --layout tp8,pp4,dp2500 --ranks-per-machine 8 --simulate 4711,17");
  command->callback([flags, command, &exit_code] { exit_code = Replay(*flags, command->remaining()); });
}

}  // namespace lockstep::cli
