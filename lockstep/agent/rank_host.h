// Starts ranks of short jobs on this machine, one after another, by fork from one Python that has imported torch (the
// zygote of `lockstep run`), or by exec where that can't be. Whatever they leave behind becomes our child and ends.
// For a process that has no other children. Not thread-safe; calls block until ranks have begun.
//
//   RankHost host(spec);
//   LS_ASSIGN_OR_RETURN(const std::vector<pid_t> pids, host.Start({{environment, "/tmp/rank0.log"}}));
//   ... waitpid ...
//   host.KillAll();
#pragma once

#include <string>
#include <vector>

#include "lockstep/agent/launch.h"
#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

struct RankProgram {
  std::string python;                // absolute path of the interpreter
  std::string package_dir;           // holds the Python package `lockstep`
  std::string cwd;                   // absolute
  std::vector<std::string> command;  // script (or module) and its arguments
  bool module = false;
  // As in EpochPlan: where the code of a later version is. The command names its script there already.
  std::string code_root{}, code{};
  Environment changed{};  // variables of that version, which are in the ranks' own too
  bool by_exec = false;
};

struct RankStart {
  Environment environment;             // laid over ours
  std::string log;                     // its stdout and stderr
  std::vector<std::string> command{};  // empty: the program's
};

class RankHost {
 public:
  explicit RankHost(RankProgram program);
  ~RankHost();
  RankHost(const RankHost&) = delete;
  RankHost& operator=(const RankHost&) = delete;

  // Their pids, in this order; each leads a session of its own.
  absl::StatusOr<std::vector<pid_t>> Start(const std::vector<RankStart>& ranks);
  // SIGKILL to all processes below us but the zygote's, and waits for them.
  void KillAll() const;

 private:
  absl::Status BeginZygote();
  void EndZygote();
  absl::StatusOr<std::vector<pid_t>> Fork(const std::vector<RankStart>& ranks);
  absl::StatusOr<pid_t> Exec(const RankStart& rank) const;
  const std::vector<std::string>& CommandOf(const RankStart& rank) const {
    return rank.command.empty() ? program_.command : rank.command;
  }

  RankProgram program_;
  Fd zygote_;
  pid_t zygote_pid_ = 0;
  bool tried_ = false;
  uint64_t requests_ = 0;
};

}  // namespace lockstep::agent
