#include "lockstep/cli/job_file.h"

#include <filesystem>

#include "lockstep/cluster/job.h"
#include "lockstep/node/install.h"

namespace lockstep::cli {
namespace {

// `flag` empty: the file alone can set it.
template <typename From, typename To>
void Take(const CLI::App& run, const std::string& flag, const std::optional<From>& from, To& to) {
  if (!from || (!flag.empty() && run.count(flag) != 0)) return;
  const From& value = *from;
  to = To(value);
}

// The job goes on to run elsewhere, and its nodes may have other working directories.
std::string Absolute(const std::string& path) { return std::filesystem::absolute(path).lexically_normal().string(); }

void TakeCommand(const cluster::RunFile& file, node::RunOptions& options) {
  if (!options.command.empty() || !file.script) return;
  options.module = file.module.value_or(options.module);
  options.command = {options.module ? *file.script : Absolute(*file.script)};
  options.command.insert(options.command.end(), file.args.begin(), file.args.end());
}

}  // namespace

absl::Status ApplyJobFile(const std::string& path, const CLI::App& run, node::RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const node::Installation installation, node::FindInstallation());
  LS_ASSIGN_OR_RETURN(const cluster::Job job, cluster::ReadJob(path, cluster::Presets(installation.presets)));
  const cluster::RunFile& file = job.run;
  if (options.job.empty()) options.job = job.name;
  if (job.layout) options.layout = cluster::LayoutJson(*job.layout);
  TakeCommand(file, options);
  Take(run, "--python", file.python, options.python);
  Take(run, "--run", file.run, options.run_dir);
  Take(run, "--nnodes", file.nnodes, options.nodes.least);
  options.nodes.most = options.nodes.least;
  Take(run, "--coordinator", file.coordinator, options.nodes.endpoint);
  Take(run, "--nproc-per-node", file.nproc_per_node, options.ranks);
  Take(run, "--max-restarts", file.max_restarts, options.max_restarts);
  Take(run, "", file.no_progress_limit, options.no_progress_limit);
  Take(run, "--observe-only", file.observe_only, options.observe_only);
  Take(run, "--hang-limit-s", file.hang_limit, options.hang_limits.hang_limit);
  Take(run, "--blocked-limit-s", file.blocked_limit, options.hang_limits.blocked_limit);
  Take(run, "--spin-limit-s", file.spin_limit, options.hang_limits.spin_limit);
  Take(run, "", file.first_step_limit, options.hang_limits.first_step_limit);
  Take(run, "", file.least_stall, options.hang_limits.least_stall);
  Take(run, "--grace-s", file.grace, options.grace);
  Take(run, "--webhook", file.webhook, options.webhook);
  Take(run, "--metrics-host", file.metrics_host, options.metrics_host);
  Take(run, "--metrics-port", file.metrics_port, options.metrics_port);
  Take(run, "--checkpoint-memory", file.checkpoint_memory, options.checkpoint_budget);
  if (file.checkpoint_dir && run.count("--checkpoint-dir") == 0)
    options.checkpoint_dir = Absolute(*file.checkpoint_dir);
  Take(run, "--checkpoint-interval-s", file.checkpoint_interval, options.checkpoint_interval);
  Take(run, "--checkpoint-keep", file.checkpoint_keep, options.checkpoint_keep);
  Take(run, "--checkpoint-flush-limit-s", file.checkpoint_flush_limit, options.checkpoint_flush_limit);
  if (file.token_file && run.count("--token-file") == 0) options.token_file = Absolute(*file.token_file);
  if (run.count("--feed") == 0) options.feeds = file.feed;
  if (file.start_method && run.count("--start-method") == 0) {
    LS_ASSIGN_OR_RETURN(options.start_method, agent::StartMethodFromName(*file.start_method));
  }
  return absl::OkStatus();
}

}  // namespace lockstep::cli
