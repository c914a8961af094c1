#include "lockstep/agent/workers.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "lockstep/agent/proc.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

// "torch_4711_0" holds 4711 and not 471.
bool HoldsNumber(const std::string& name, pid_t number) {
  const std::string digits = std::to_string(number);
  const auto is_digit = [&](size_t at) { return at < name.size() && name[at] >= '0' && name[at] <= '9'; };
  for (size_t at = name.find(digits); at != std::string::npos; at = name.find(digits, at + 1)) {
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + digits.size())) return true;
  }
  return false;
}

constexpr char kShmDir[] = "/dev/shm/";

// Name and inode of all that lies in /dev/shm.
std::set<std::pair<std::string, ino_t>> ListShm() {
  std::set<std::pair<std::string, ino_t>> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(kShmDir), closedir);
  if (!dir) return found;
  while (const dirent* entry = readdir(dir.get())) found.emplace(entry->d_name, entry->d_ino);
  return found;
}

// A line of /proc/sysvipc/shm: key, shmid, perms, size, cpid, lpid, nattch, ...
void RemoveSegments(const std::vector<Worker>& workers) {
  std::istringstream lines(ReadFile("/proc/sysvipc/shm").value_or(""));
  std::string line;
  std::getline(lines, line);  // names
  while (std::getline(lines, line)) {
    int64_t key = 0, id = 0, perms = 0, size = 0, maker = 0, last = 0, attached = 0;
    if (!(std::istringstream(line) >> key >> id >> perms >> size >> maker >> last >> attached) || attached != 0)
      continue;
    const auto made_it = [&](const Worker& worker) { return worker.pid == maker; };
    if (std::any_of(workers.begin(), workers.end(), made_it)) shmctl(static_cast<int>(id), IPC_RMID, nullptr);
  }
}

std::set<std::string> Paths(const std::vector<std::string>& list) { return {list.begin(), list.end()}; }

// A v1 freezer lets a process die only once it is out: moving it to the root group thaws this process and no other.
void Thaw(pid_t pid) {
  const Fd tasks(open("/sys/fs/cgroup/freezer/cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!tasks.valid()) return;
  const std::string text = std::to_string(pid);
  [[maybe_unused]] const ssize_t wrote = write(tasks.get(), text.data(), text.size());
}

// These, and all that are below them.
std::vector<pid_t> Families(std::vector<pid_t> pids) {
  const std::vector<pid_t> below = Descendants(pids);
  pids.insert(pids.end(), below.begin(), below.end());
  return pids;
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

void KillTree(pid_t pid) {
  for (const pid_t below : Descendants({pid})) kill(below, SIGKILL);
  kill(pid, SIGKILL);
}

std::vector<Worker> Workers::Begin(uint64_t epoch, const std::vector<pid_t>& pids) {
  epoch_ = epoch;
  // One that went on from the epoch before may have died since.
  for (const Worker& worker : std::exchange(workers_, {}))
    if (worker.exited) early_deaths_.push_back(worker);
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

void SharedMemoryTraces::Collect(const std::vector<Worker>& workers) {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers)
    if (!worker.exited) pids.push_back(worker.pid);
  for (const pid_t pid : Families(std::move(pids))) paths_.merge(Paths(MappedShm(pid)));
}

void SharedMemoryTraces::Begin() { before_ = ListShm(); }

void SharedMemoryTraces::Remove(const std::vector<Worker>& workers) {
  for (const auto& file : ListShm()) {
    const std::string path = kShmDir + file.first;
    const auto is_named = [&](const Worker& worker) { return HoldsNumber(file.first, worker.pid); };
    const bool ours = paths_.contains(path) || std::any_of(workers.begin(), workers.end(), is_named);
    if (ours && !before_.contains(file) && !MappedByAnyone(path)) unlink(path.c_str());
  }
  paths_.clear();
  RemoveSegments(workers);
}

}  // namespace lockstep::agent
