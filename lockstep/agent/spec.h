// What to run on this node: everything the starter needs, written once to <run dir>/run.json so that it survives every
// watcher.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/agent/torchrun.h"
#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/control/ranks_end.h"
#include "lockstep/control/roster.h"

namespace lockstep::agent {

enum class StartMethod { kAuto, kZygote, kExec };
absl::StatusOr<StartMethod> StartMethodFromName(const std::string& name);
const char* StartMethodName(StartMethod method);

// A data set that a service beside the job prepares.
struct FeedSpec {
  std::string data;                       // an absolute path, or a URL
  std::string name;                       // what loaders call it
  std::vector<std::string> options = {};  // of its `lockstep feed serve`
  bool operator==(const FeedSpec&) const = default;
};

struct RunSpec {
  std::string job;
  std::string run_dir;  // absolute, mode 0700
  std::string cwd;
  std::string python;                // absolute path of the interpreter
  std::string python_from;           // why that one: "--python", "$PYTHON_EXEC", "venv", "PATH"
  std::vector<std::string> command;  // script (or module) and its arguments
  bool module = false;               // command[0] is a module name (-m)
  int ranks = 1;                     // on this node
  control::Place place;              // of this node in the job
  std::string node_name;
  std::string address;                // of this machine, by which other nodes reach it; empty: there are none
  std::string coordinator;            // HOST:PORT,... of it, for a node that does not lead the job itself
  std::string endpoint;               // HOST:PORT where this node's coordinator listens; empty: nowhere
  std::string journal;                // postgresql://... of a coordinator that keeps it there; empty: in the directory
  std::string run_token, node_token;  // of the whole run, and of this node's part in it
  StartMethod start_method = StartMethod::kAuto;
  std::string package_dir;        // holds the Python package `lockstep`
  std::string client_lib;         // liblockstep-client.so
  std::string gloo_lib;           // liblockstep-gloo.so, preloaded into workers; empty: it is not
  std::string nccl_lib;           // liblockstep-nccl-profiler.so, alone in its folder, for NCCL; empty: it is not
  Bytes checkpoint_budget;        // 0 = half of what is available
  Bytes log_limit{256ull << 20};  // per rank; what is beyond is dropped and counted
  int max_restarts = 1000;
  bool allow_drill = false;  // workers take faults from `lockstep drill`
  Torchrun torchrun;
  std::string checkpoint_dir;  // absolute; empty: no checkpoints on disk
  Seconds checkpoint_interval{600};
  int checkpoint_keep = 2;
  std::string checkpoint_upload{};      // a store that gets copies; empty: none
  Seconds checkpoint_flush_limit{120};  // a flush that takes longer is given up
  std::string layout{};                 // of the job, as JSON, for the manifest; empty: not known
  std::vector<FeedSpec> feeds{};        // names are different
  std::string watching{};               // what whoever watches was asked for, as JSON; empty: not known
  // Without an agent this long, the starter ends the job.
  Seconds adoption{control::kWithoutAgent};
};

// Of what a process of ours may have, the files of so many ranks on its node and its own. A starter has some 19 and 8 a
// rank, and while it starts one 2 more; an agent 30 and 2 a rank.
uint64_t OpenFilesFor(int ranks);

// The job's number of a rank that is the index-th of this node.
RankId GlobalRank(const RunSpec& spec, int index);

Json ToJson(const RunSpec& spec);
absl::StatusOr<RunSpec> RunSpecFromJson(const std::string& text);
absl::StatusOr<RunSpec> ReadRunSpec(const std::string& run_dir);

// Ranks below are those of the node: 0 to spec.ranks - 1.
std::string StacksPath(const RunSpec& spec, uint64_t epoch, int rank);  // faulthandler's file of one worker
std::string ErrorPath(const RunSpec& spec, uint64_t epoch, int rank);   // its uncaught exception
// The error file that @record of torch.distributed.elastic writes.
std::string TorchErrorPath(const RunSpec& spec, uint64_t epoch, int restart_count, int rank);
std::string LogPath(const RunSpec& spec, int rank);
std::string DrillPath(const RunSpec& spec, uint64_t epoch, int rank);  // a fault that it is asked to make
std::string EpochDir(const RunSpec& spec, uint64_t epoch);
std::string FeedDir(const RunSpec& spec);    // sockets and logs of data services: NAME.sock, NAME.log
std::string TrailsDir(const RunSpec& spec);  // what collectors in workers keep
bool KeepsTrails(const RunSpec& spec);       // a collector goes into workers

// SIGRTMIN + 7 asks a worker for its Python stacks; this one asks it to look at DrillPath.
inline constexpr int kDrillSignal = 8;

inline constexpr char kAgentSocket[] = "starter.sock";
inline constexpr char kControlSocket[] = "control.sock";
inline constexpr char kWatcherLock[] = "watcher.lock";
inline constexpr char kJournalFile[] = "journal.sqlite";

}  // namespace lockstep::agent
