// The worker processes of the acting epoch as the starter knows them: who runs, who left and how, and that nothing of
// them stays behind.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::agent {

struct Worker {
  int rank = 0;
  pid_t pid = 0;
  bool exited = false;
  int code = 0, signal = 0;
  Nanos exited_at;

  // It ended, with this status of wait(2).
  void SetStatus(int wait_status, Nanos at);
};

// These processes, and all that are below them.
std::vector<pid_t> Families(std::vector<pid_t> pids);
// It, or another process of its group: what a shell runs goes on when the shell has ended.
bool HasGroup(const Worker& worker);
// SIGKILL to a process and all its descendants.
void KillTree(pid_t pid);

class Workers {
 public:
  // Workers are about to be started; until Begin, unknown deaths may be theirs.
  void Expect();
  // The pids of ranks 0..n-1, of which some, `kept` by rank, were workers of the epoch before. Returns those that died
  // before this call.
  std::vector<Worker> Begin(uint64_t epoch, const std::vector<pid_t>& pids, const std::map<int, pid_t>& kept);
  // A child was reaped. Its worker if it was one (then it has just exited), else nullopt.
  std::optional<Worker> Reaped(pid_t pid, int wait_status, Nanos at);

  uint64_t epoch() const { return epoch_; }
  const std::vector<Worker>& all() const { return workers_; }
  // To every worker's process group, or to the worker alone and nothing that it has started.
  void Signal(int signal) const;
  void SignalAlone(int signal) const;
  // SIGKILL to the workers that are not to be spared, and all their descendants; thaws what a v1 freezer holds, since a
  // frozen process can't die.
  void Kill(const std::function<bool(const Worker&)>& spare) const;

 private:
  uint64_t epoch_ = 0;
  std::vector<Worker> workers_;
  bool expecting_ = false;
  std::vector<Worker> early_deaths_;  // reaped before their rank was known
};

}  // namespace lockstep::agent
