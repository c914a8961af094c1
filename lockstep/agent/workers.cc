#include "lockstep/agent/workers.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/agent/proc.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

// A v1 freezer lets a process die only once it is out: moving it to the root group thaws this process and no other.
void Thaw(pid_t pid) {
  const Fd tasks(open("/sys/fs/cgroup/freezer/cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!tasks.valid()) return;
  const std::string text = std::to_string(pid);
  [[maybe_unused]] const ssize_t wrote = write(tasks.get(), text.data(), text.size());
}

}  // namespace

void Workers::Expect() {
  expecting_ = true;
  early_deaths_.clear();
}

void Worker::SetStatus(int wait_status, Nanos at) {
  exited = true;
  exited_at = at;
  if (WIFSIGNALED(wait_status)) {
    signal = WTERMSIG(wait_status);
  } else {
    code = WEXITSTATUS(wait_status);
  }
}

// These, and all that are below them.
std::vector<pid_t> Families(std::vector<pid_t> pids) {
  const std::vector<pid_t> below = Descendants(pids);
  pids.insert(pids.end(), below.begin(), below.end());
  return pids;
}

bool HasGroup(const Worker& worker) { return kill(-worker.pid, 0) == 0; }

void KillTree(pid_t pid) {
  for (const pid_t below : Descendants({pid})) kill(below, SIGKILL);
  kill(pid, SIGKILL);
}

std::vector<Worker> Workers::Begin(uint64_t epoch, const std::vector<pid_t>& pids, const std::map<int, pid_t>& kept) {
  epoch_ = epoch;
  // One that went on from the epoch before may have died since.
  for (const Worker& worker : std::exchange(workers_, {}))
    if (worker.exited && kept.contains(worker.rank)) early_deaths_.push_back(worker);
  std::vector<Worker> dead;
  for (const pid_t pid : pids) {
    Worker worker;
    worker.rank = static_cast<int>(workers_.size());
    worker.pid = pid;
    const auto early =
        std::find_if(early_deaths_.begin(), early_deaths_.end(), [&](const Worker& w) { return w.pid == pid; });
    if (early != early_deaths_.end()) {
      const int rank = worker.rank;
      worker = *early;
      worker.rank = rank;
      dead.push_back(worker);
    }
    workers_.push_back(worker);
  }
  expecting_ = false;
  return dead;
}

std::optional<Worker> Workers::Reaped(pid_t pid, int wait_status, Nanos at) {
  for (Worker& worker : workers_) {
    if (worker.pid != pid || worker.exited) continue;
    worker.SetStatus(wait_status, at);
    return worker;
  }
  if (expecting_) {
    Worker unknown;
    unknown.pid = pid;
    unknown.SetStatus(wait_status, at);
    early_deaths_.push_back(unknown);
  }
  return std::nullopt;
}

void Workers::Signal(int signal) const {
  for (const Worker& worker : workers_) {
    if (!worker.exited) kill(-worker.pid, signal);
  }
}

void Workers::SignalAlone(int signal) const {
  for (const Worker& worker : workers_) {
    if (!worker.exited) kill(worker.pid, signal);
  }
}

void Workers::Kill(const std::function<bool(const Worker&)>& spare) const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) {
    if (worker.exited || spare(worker)) continue;
    pids.push_back(worker.pid);
  }
  pids = Families(std::move(pids));
  for (const pid_t pid : pids) kill(pid, SIGKILL);
  for (const pid_t pid : pids) Thaw(pid);
}

}  // namespace lockstep::agent
