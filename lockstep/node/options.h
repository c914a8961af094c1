// What a user asked `lockstep run` for.
#pragma once

#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/agent/spec.h"
#include "lockstep/base/units.h"
#include "lockstep/control/plan_watch.h"
#include "lockstep/control/roster.h"
#include "lockstep/detect/hang.h"
#include "lockstep/inspect/item.h"

namespace lockstep::node {

inline constexpr int kAsCoordinatorSays = 0;

// Which nodes take part in a job, and how they find each other.
struct Nodes {
  int least = 1, most = 1;  // kAsCoordinatorSays, both
  int own_rank = -1;        // -1: any
  std::string own_name;     // empty: the host's
  std::string endpoint;     // HOST:PORT of the coordinator, or HOST:PORT,...: one leads; empty: one node, needs none
  bool may_lead = true;     // start the coordinator here, if the endpoint is ours and free
  bool must_lead = false;
  Seconds join_timeout{600};
  control::Expected expected{};  // what a coordinator was told of them

  bool several() const { return most != 1; }
};

struct RunOptions {
  int ranks = 1;
  Nodes nodes;
  std::string job;      // empty: made from the script's name and our pid
  std::string run_dir;  // empty: under the user's runtime directory; once it runs: in full
  std::string journal;  // postgresql://..., of a coordinator; empty: in the run directory
  std::string python;   // empty: found by agent::FindPython
  agent::StartMethod start_method = agent::StartMethod::kAuto;
  bool module = false;
  agent::Torchrun torchrun;  // its log_dir is what --log-dir says: the folder above those of the runs
  std::vector<int> stop_signals = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  std::optional<int> max_restarts;  // nullopt: as many as agent::RunSpec says, for a job that makes progress
  int no_progress_limit = 3;
  bool observe_only = false;
  bool allow_drill = false;
  bool preload = true;  // our collectors, into workers
  bool nccl_profiler = false;
  Seconds grace{30};
  detect::HangLimits hang_limits;
  std::string cluster = "none";              // whose scheduler is asked for machines, and told of broken ones: "slurm"
  std::string standby_job;                   // a batch script that brings one; empty: standby_command does
  std::vector<std::string> standby_command;  // as this one is run; empty: it leads without ranks
  std::string recovery_file;                 // of the policy of recovery; empty: the default
  control::Policy recovery;
  std::string plan_file;  // empty: the job is compared with none
  std::optional<control::PlannedStep> plan;
  std::string inspect_file;  // of this node's inspections; empty: as they were, or the defaults
  inspect::Settings inspections;
  Bytes checkpoint_budget;     // 0: half of what is available
  std::string checkpoint_dir;  // empty: no checkpoints on disk
  Seconds checkpoint_interval{600};
  int checkpoint_keep = 2;
  std::string checkpoint_upload{};  // a store that gets copies of them; empty: none
  Seconds checkpoint_flush_limit{120};
  std::string layout{};            // of the job, as JSON; empty: not known
  std::vector<std::string> feeds;  // data sets that a service beside the job prepares (node/feeds.h)
  int metrics_port = -1;           // -1: no HTTP server; 0: any free port
  std::string metrics_host = "127.0.0.1";
  std::string token_file;            // needed beyond loopback
  std::string webhook;               // http://...: incidents are posted there
  bool resumes = false;              // a job that runs: what can't be served or told of it is no reason to leave it
  bool live_view = true;             // when stderr is a terminal
  std::vector<std::string> command;  // script and its arguments
  std::vector<std::string> notices;  // lines for the user before the job begins
};

}  // namespace lockstep::node
