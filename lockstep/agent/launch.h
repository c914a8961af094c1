// One worker process: the environment it sees (torchrun's contract plus ours) and its start by exec. The zygote uses
// the same environment.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>

#include "lockstep/agent/spec.h"
#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

struct EpochPlan {
  uint64_t epoch = 1;
  int restart_count = 0;
  std::string store_host = "127.0.0.1";  // of the rendezvous store
  int store_port = 0;
  bool agent_store = true;  // false: no torch to host it with; rank 0 binds store_port itself
  std::string torch{};      // version that the workers will import; empty: unknown
  // The version of what they run.
  int version = 0;
  std::string code_root{}, code{};  // the code is in `code` in place of `code_root`; empty: where it was at the start
  std::map<std::string, std::string> environment{};
};

using Environment = std::map<std::string, std::string>;

// Why a version may not set this variable; empty: it may. Lockstep sets the others for every worker itself.
std::string WhyNotSet(const std::string& name);

// What a worker sees beyond the inherited environment. Sets OMP_NUM_THREADS=1 where torchrun would.
Environment WorkerEnvironment(const RunSpec& spec, const EpochPlan& plan, int rank);
// What the version of the plan changes in it, last: where code is found, and its own variables.
void AddVersion(const RunSpec& spec, const EpochPlan& plan, Environment& environment);
// As --virtual-local-rank of torchrun has it, of the rank-th on this node.
void AddVirtualLocalRank(int rank, Environment& environment);
// Where the loader finds NCCL's plugin by its name. For the zygote, too: a fork's loader knows what that was told.
void AddNcclFolder(const RunSpec& spec, Environment& environment);
// What all our Python processes see: where the packages are, and (workers by exec only) our sitecustomize first.
Environment PythonEnvironment(const RunSpec& spec, bool for_worker);
// The value that the variable has for the process: from `extra`, else inherited, else fallback.
std::string Lookup(const Environment& extra, const std::string& name, const std::string& fallback);

// Starts `argv` with `extra` laid over the inherited environment, in a session of its own, in `cwd`, with the given
// stdout and stderr and stdin from /dev/null. `inherit` (-1 = none) stays open in it. Sets LOCKSTEP_WORKER_PID to the
// new pid. `outlives_us`: false: it is killed when the thread that calls this ends, however it does. Errors: what
// execve said.
absl::StatusOr<pid_t> StartProcess(const std::vector<std::string>& argv, const Environment& extra,
                                   const std::string& cwd, int out, int err, int inherit, bool outlives_us = true);

// The script (or module) and its arguments with $local_rank filled in, and the same behind `python -u [-m]`. `code`:
// as in EpochPlan.
std::vector<std::string> ScriptCommand(const RunSpec& spec, int rank, const std::string& code = "");
std::vector<std::string> WorkerCommand(const RunSpec& spec, int rank, const std::string& code = "");

// A port that was free a moment ago: `wanted` if it is (0: no wish), else any.
absl::StatusOr<int> FreePort(int wanted);

}  // namespace lockstep::agent
