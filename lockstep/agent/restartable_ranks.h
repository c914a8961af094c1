// Workers that can leave their training function and enter it again in the same process (@lockstep.restartable,
// python/lockstep/_restart.py): who offers that, who was asked to leave, who has left and waits for the next epoch.
// Each holds a socket of standby.sock in the run directory; the kernel says which process it is. Lives in the poller's
// thread.
//
//   RestartableRanks restartable(poller, [&] { ... somebody waits, or is gone ... });
//   LS_RETURN_IF_ERROR(restartable.Listen(run_dir));
//   restartable.Recall(pid);                       // false: it does not offer it, so it must be killed
//   if (restartable.Waits(pid)) restartable.Enter(pid, environment, stdio);
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <string>

#include "lockstep/agent/launch.h"
#include "lockstep/agent/python_host.h"
#include "lockstep/base/doorway.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

class RestartableRanks {
 public:
  RestartableRanks(Poller& poller, std::function<void()> changed) : poller_(poller), changed_(std::move(changed)) {}
  absl::Status Listen(const std::string& run_dir);

  // Asks a process to leave its function. Asked twice: true again.
  bool Recall(pid_t pid);
  bool Waits(pid_t pid) const;
  // A waiting process enters its function, as the worker that has this environment and output. Unavailable: it is gone.
  absl::Status Enter(pid_t pid, const Environment& environment, const Stdio& stdio);

 private:
  enum class State { kTrains, kAsked, kWaits };
  struct Member {
    Fd socket;
    State state = State::kTrains;
  };
  void Accept();
  void Hear(pid_t pid);
  void Forget(pid_t pid);

  Poller& poller_;
  std::function<void()> changed_;
  Doorway doorway_;
  std::map<pid_t, Member> members_;
};

}  // namespace lockstep::agent
