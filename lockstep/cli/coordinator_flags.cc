#include "lockstep/cli/coordinator_flags.h"

#include "lockstep/cli/checks.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {

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
         "--hang-limit-s", options.policy.hang_limit.value,
         "Seconds without any progress after which the job is restarted whoever is to blame; three times as many "
         "while a rank outside the collective shows work, and never while a debugger is attached")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--blocked-limit-s", options.policy.blocked_limit.value,
                 "Seconds that a rank may be blocked for ever outside the collective in which the others wait")
      ->capture_default_str()
      ->check(AboveZero());
  run.add_option("--spin-limit-s", options.policy.spin_limit.value,
                 "Seconds that a rank may spin without progress while the others wait")
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
