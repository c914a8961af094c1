// Job: what is to run: a layout, a model, a cluster, and how `lockstep run` is to start and guard it. Read from
// job.toml, whose keys docs/formats/job.md lists. All but the name is optional; a flag on the command line wins over
// the file. Invariants (Validate): each member is valid; the layout fits the cluster and the model where both are
// given. Thread-compatible.
//
//   LS_ASSIGN_OR_RETURN(const Job job, ReadJob("job.toml", Presets("presets")));   // "job.toml:7:6: layout.tp must be
//   at least 1, found 0"
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/cluster/cluster.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/cluster/model.h"
#include "lockstep/cluster/presets.h"

namespace lockstep::cluster {

// The [run] table: the flags of `lockstep run`, each as its flag says it with "_" for "-". nullopt: not in the file.
struct RunFile {
  std::optional<std::string> script;  // relative to the job file, unless it is a module
  std::optional<bool> module;         // script is a module's name, as in python -m
  std::vector<std::string> args;
  std::optional<std::string> python;
  std::optional<std::string> run;  // the run directory
  std::optional<int> nnodes;
  std::optional<std::string> coordinator;  // HOST:PORT
  std::optional<int> nproc_per_node;
  std::optional<int> max_restarts;
  std::optional<int> no_progress_limit;
  std::optional<std::string> start_method;  // "auto", "zygote", "exec"
  std::optional<bool> observe_only;
  std::optional<Seconds> hang_limit, blocked_limit, spin_limit, first_step_limit, least_stall, grace;
  std::optional<std::string> webhook;
  std::optional<std::string> metrics_host;
  std::optional<int> metrics_port;            // 0: any free one
  std::optional<std::string> token_file;      // relative to the job file
  std::optional<Bytes> checkpoint_memory;     // all buffers of this node together, at most
  std::optional<std::string> checkpoint_dir;  // relative to the job file
  std::optional<Seconds> checkpoint_interval, checkpoint_flush_limit;
  std::optional<int> checkpoint_keep;
  std::vector<std::string> feed;  // each as --feed says it
};

struct Job {
  std::string name;
  std::optional<Layout> layout;
  std::optional<Model> model;
  std::optional<Cluster> cluster;
  RunFile run;

  absl::Status Validate() const;
};

absl::StatusOr<Job> ReadJob(const std::string& path, const Presets& presets);
absl::StatusOr<Job> ParseJob(std::string_view text, const std::string& file, const Presets& presets);

}  // namespace lockstep::cluster
