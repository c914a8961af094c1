#include "lockstep/cli/coordinator_flags.h"

#include <algorithm>

#include "lockstep/cli/checks.h"
#include "lockstep/node/install.h"
#include "lockstep/node/kept_options.h"
#include "lockstep/node/run_dir.h"

namespace lockstep::cli {
namespace {

bool IsGiven(const CLI::App& command, const std::string& flag) {
  const CLI::Option* option = command.get_option_no_throw(flag);
  return option != nullptr && option->count() > 0;
}

}  // namespace

absl::StatusOr<control::Policy> FindPolicy(const std::string& name) {
  LS_ASSIGN_OR_RETURN(const std::string path, node::FindPreset("policy", name));
  return control::ReadPolicy(path);
}

absl::Status ReadFilesOf(node::RunOptions& options) {
  if (!options.recovery_file.empty()) {
    LS_ASSIGN_OR_RETURN(options.recovery, FindPolicy(options.recovery_file));
  }
  if (!options.plan_file.empty()) {
    LS_ASSIGN_OR_RETURN(options.plan, control::ReadPlannedStep(options.plan_file));
  }
  if (!options.inspect_file.empty()) {
    LS_ASSIGN_OR_RETURN(options.inspections, inspect::ReadSettings(options.inspect_file));
  }
  return absl::OkStatus();
}

absl::Status GoOnAsBefore(const std::string& run_dir, const CLI::App& command, node::RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::string found, node::FindRunDir(run_dir));
  LS_ASSIGN_OR_RETURN(const agent::RunSpec spec, agent::ReadRunSpec(found));
  const auto given = [&](const std::string& flag) { return IsGiven(command, flag); };
  if (const absl::Status taken = node::TakeKept(spec.watching, given, options); !taken.ok())
    return At(found + "/run.json", taken);
  if (!options.plan_file.empty() && !given("--plan")) {
    if (const auto plan = control::ReadPlannedStep(options.plan_file); !plan.ok()) {
      options.notices.push_back("goes on without --plan: " + Message(plan.status()));
      options.plan_file.clear();
    }
  }
  std::vector<std::string> follows = node::KeptFlags();
  follows.insert(follows.end(), {"--resume", "--no-view", "--job-file", "--nproc-per-node"});
  std::string late;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || std::ranges::count(follows, option->get_name()) > 0) continue;
    late += (late.empty() ? "" : ", ") + option->get_name();
  }
  if (!late.empty())
    options.notices.push_back(fmt::format("no effect with --resume: {}; the run goes on as it began", late));
  return absl::OkStatus();
}

absl::Status CheckServing(const CLI::App& command, const node::RunOptions& options) {
  if (options.metrics_port >= 0) return absl::OkStatus();
  for (const char* flag : {"--token-file", "--metrics-host"})
    if (IsGiven(command, flag))
      return InvalidArgument("{} needs --metrics-port, for nothing is served without: a port, or 0 for any free one",
                             flag);
  return absl::OkStatus();
}

void DeclareCoordination(CLI::App& run, node::RunOptions& options) {
  run.add_option("--standbys", options.nodes.expected.standbys,
                 "Nodes beyond those of the job that may join, wait warm, and take the place of one that is lost")
      ->check(Between(0, 1000));
  run.add_option("--cluster", options.cluster,
                 "slurm: ask Slurm for a machine where none stands by, and drain those that were evicted as broken "
                 "(docs/clusters.md)")
      ->capture_default_str()
      ->check(CLI::IsMember({"none", "slurm"}));
  run.add_option("--standby-job", options.standby_job,
                 "Batch script that brings such a machine; its first argument is where the coordinator is")
      ->check(CLI::ExistingFile);
  run.add_option(
      "--policy", options.recovery_file,
      "TOML file with what may be done about a fault, and how often; presets/policy/default.toml has all keys");
  run.add_option("--plan", options.plan_file,
                 "Compare the job's steps with this prediction, JSON of `lockstep plan ... --layout ... --json`; says "
                 "when they take longer, and does nothing about it");
  run.add_flag("--observe-only", options.observe_only, "Say what would be done and touch nothing");
  run.add_option(
         "--hang-limit-s", options.hang_limits.hang_limit.value,
         "Seconds without any progress after which the job is restarted whoever is to blame; three times as many "
         "while a rank outside the collective shows work, and never while a debugger is attached")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--blocked-limit-s", options.hang_limits.blocked_limit.value,
                 "Seconds that a rank may be blocked for ever outside the collective in which the others wait")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--spin-limit-s", options.hang_limits.spin_limit.value,
                 "Seconds of processor time that a rank may spin without progress while the others wait")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--grace-s", options.grace.value, "Seconds from SIGTERM to SIGKILL when the job is stopped")
      ->capture_default_str()
      ->check(NotBelowZero());
  run.add_option("--metrics-port", options.metrics_port, "Serve /metrics and /api/v1/status there; 0: any free port")
      ->check(Between(0, 65535));
  run.add_option("--metrics-host", options.metrics_host,
                 "Address to serve on; beyond loopback a --token-file is needed")
      ->capture_default_str();
  run.add_option("--token-file", options.token_file, "File with the bearer token for the HTTP server");
  run.add_option("--webhook", options.webhook, "URL to which every change of an incident is posted as JSON")
      ->check(NotEmpty());
}

}  // namespace lockstep::cli
