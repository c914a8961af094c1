#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/cli/checks.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/coordinator_flags.h"
#include "lockstep/cli/job_file.h"
#include "lockstep/cli/standby_command.h"
#include "lockstep/cli/torchrun_flags.h"
#include "lockstep/cli/usage.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/node/init.h"
#include "lockstep/node/options.h"
#include "lockstep/node/run.h"
#include "lockstep/node/run_spec.h"

namespace lockstep::cli {
namespace {

struct RunFlags {
  node::RunOptions options;
  TorchrunFlags torchrun;
  std::string resume, job_file;
  bool no_view = false, dry_run = false;
  std::vector<const CLI::Option*> of_leading;  // what a coordinator elsewhere knows by its own options
};

void Declare(CLI::App& run, RunFlags& flags) {
  node::RunOptions& options = flags.options;
  run.add_option("--python", options.python, "Interpreter; default: $PYTHON_EXEC, the active venv, python3 on PATH");
  run.add_option("--job", options.job, "Name of the job; default: the script's name and our pid")->check(NotEmpty());
  run.add_option("--run", options.run_dir, kNewRunDir)->check(NotEmpty());
  run.add_option("--resume", flags.resume, "Adopt the workers of this run directory, whose watcher is gone")
      ->check(NotEmpty());
  run.add_option("--coordinator", options.nodes.endpoint,
                 "HOST:PORT of a `lockstep coordinator`, or of the node that leads; with --nnodes above 1. "
                 "HOST:PORT,HOST:PORT: of several coordinators, one of which leads");
  run.add_option("--node-name", options.nodes.own_name,
                 "Name of this node; default: the host's. Several nodes on one machine need names of their own");
  run.add_flag("--allow-drill", options.allow_drill,
               "Let `lockstep drill` break this run on purpose; for rehearsals only");
  run.add_flag("!--no-preload", options.preload,
               "Leave liblockstep-gloo.so out of the workers: their collectives are not watched then");
  run.add_flag("--nccl-profiler", options.nccl_profiler,
               "Have NCCL load liblockstep-nccl-profiler.so: its collectives are watched, too");
  run.add_option("--inspect", options.inspect_file,
                 "TOML file: what this node's inspections look at, and when it is an alert; "
                 "presets/inspect/default.toml has all keys")
      ->check(NotEmpty());
  run.add_flag("--dry-run", flags.dry_run, "Print what would be started, with which environment, and start nothing");
  const size_t before = run.get_options().size();
  DeclareCoordination(run, options);
  const std::vector<CLI::Option*> declared = run.get_options();
  flags.of_leading.assign(declared.begin() + static_cast<std::ptrdiff_t>(before), declared.end());
  run.add_flag("--no-view", flags.no_view, "No live view, even on a terminal");
  run.add_option("--checkpoint-memory", options.checkpoint_budget.value,
                 "Memory for all checkpoint buffers, such as 8GB; default: half of what is available")
      ->transform(Size());
  run.add_option(
         "--checkpoint-dir", options.checkpoint_dir,
         "Keep checkpoints on disk there too, and go on from the newest one that is whole. All nodes must see it")
      ->check(NotEmpty());
  run.add_option("--checkpoint-interval-s", options.checkpoint_interval.value, "Seconds between checkpoints on disk")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--checkpoint-keep", options.checkpoint_keep, "How many of them are kept")
      ->capture_default_str()
      ->check(Between(1, 1000000));
  run.add_option("--checkpoint-upload", options.checkpoint_upload,
                 "Copy them to s3://BUCKET/PREFIX too (AWS_... of the environment), or to a mounted directory; a run "
                 "with an empty --checkpoint-dir begins from there");
  run.add_option("--checkpoint-flush-limit-s", options.checkpoint_flush_limit.value,
                 "Seconds after which writing one is given up")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option(
         "--feed", options.feeds,
         "DATA[:NAME][,KEY=VALUE...]: prepare this data set beside the job, for lockstep.feed.Loader(NAME, ...); NAME "
         "is the file's or directory's name unless said, KEYs are options of `lockstep feed serve`: "
         "/data/text.bin:text,tokens=2048,cache=8G. May be given several times")
      ->allow_extra_args(false);
  run.add_option("--job-file", flags.job_file,
                 "Read the job from this TOML file (docs/formats/job.md); flags win over it");
  flags.torchrun.Declare(run);
  run.formatter(std::make_shared<UsageWithScript>("SCRIPT [ARGS...]"));
  run.prefix_command();  // everything from SCRIPT on belongs to the script
  run.footer("Example: lockstep run --nproc-per-node 4 examples/train_gpt.py --steps 100");
}

void NoteWhatOthersDecide(const RunFlags& flags, const CLI::App& run, node::RunOptions& options) {
  if (run.count("--coordinator") == 0 || options.nodes.may_lead) return;
  std::string names;
  for (const CLI::Option* option : flags.of_leading)
    if (option->count() > 0) names += (names.empty() ? "" : ", ") + option->get_name();
  if (run.count("--max-restarts") > 0) names += (names.empty() ? "" : ", ") + std::string("--max-restarts");
  if (names.empty()) return;
  options.notices.push_back(fmt::format("no effect here: {}; the coordinator at {} leads, by its own options", names,
                                        options.nodes.endpoint));
}

// Of several nodes each may bring another number of ranks: whoever leads them sees whether it fits.
absl::Status CheckLayout(const RunFlags& flags) {
  const node::RunOptions& options = flags.options;
  if (options.layout.empty() || options.nodes.several() || !flags.resume.empty()) return absl::OkStatus();
  LS_ASSIGN_OR_RETURN(const cluster::Layout layout, cluster::LayoutFromJson(options.layout));
  const absl::Status fits = layout.CheckRanks(options.ranks);
  return fits.ok() ? fits : InvalidArgument("{}: {}", flags.job_file, Message(fits));
}

int PrintDryRun(const node::RunOptions& options) {
  for (const std::string& notice : options.notices) fmt::print(stderr, "lockstep: {}\n", notice);
  return PrintReport(node::DryRun(options), false);
}

absl::StatusOr<int> Start(RunFlags& flags, const CLI::App& run) {
  const std::vector<std::string> command = run.remaining();
  node::RunOptions& options = flags.options;
  if (!command.empty() && command.front().starts_with('-')) {
    return InvalidArgument(
        "unknown option {}; options of `lockstep run` come before the script, see lockstep run --help",
        command.front());
  }
  LS_RETURN_IF_ERROR(CheckTexts(run));
  for (const std::string& word : command) LS_RETURN_IF_ERROR(CheckText("the script's argument", word));
  std::vector<const char*> told = {"PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                                   "MKL_NUM_THREADS"};
  if (options.nccl_profiler) told.push_back("LD_LIBRARY_PATH");
  for (const char* name : told)
    if (const char* value = std::getenv(name); value != nullptr)
      LS_RETURN_IF_ERROR(CheckText(fmt::format("the variable {}", name), value));
  if (flags.resume.empty()) {
    LS_ASSIGN_OR_RETURN(const std::string here, WorkingDirectory());
    LS_RETURN_IF_ERROR(CheckText("the working directory", here));
  }
  options.command = command;
  options.live_view = !flags.no_view;
  if (!flags.resume.empty()) LS_RETURN_IF_ERROR(GoOnAsBefore(flags.resume, run, options));
  if (!flags.job_file.empty()) LS_RETURN_IF_ERROR(ApplyJobFile(flags.job_file, run, options));
  LS_RETURN_IF_ERROR(flags.torchrun.Apply(options));  // knows the number of ranks by now
  LS_RETURN_IF_ERROR(CheckLayout(flags));
  LS_RETURN_IF_ERROR(CheckServing(run, options));
  NoteWhatOthersDecide(flags, run, options);
  LS_RETURN_IF_ERROR(ReadFilesOf(options));
  if (options.cluster != "none" && options.nodes.several() && options.standby_job.empty() && flags.resume.empty())
    options.standby_command = StandbyCommand(run, options.nodes.endpoint);
  if (options.cluster != "none" && !options.nodes.several() && flags.resume.empty())
    options.notices.push_back(fmt::format("--cluster {} has no effect: the job runs on one node", options.cluster));
  if (flags.dry_run) return PrintDryRun(options);
  node::StandBehindInit();
  return flags.resume.empty() ? node::RunJob(options) : node::ResumeJob(flags.resume, options);
}

}  // namespace

void AddRun(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();  // lives as long as the callbacks of the parser
  CLI::App* run = app.add_subcommand("run", "Run a training script on this node and keep it running");
  Declare(*run, *flags);
  run->callback([flags, run, &exit_code] { exit_code = ExitCodeOf(Start(*flags, *run)); });
}

}  // namespace lockstep::cli
