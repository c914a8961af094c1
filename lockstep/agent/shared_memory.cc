#include "lockstep/agent/shared_memory.h"

#include <dirent.h>
#include <sys/inotify.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <sstream>
#include <vector>

#include "lockstep/agent/proc.h"
#include "lockstep/base/file.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kPeriod{1.0};
constexpr char kShmDir[] = "/dev/shm/";

// "torch_4711_0" holds 4711 and not 471.
bool HoldsNumber(const std::string& name, pid_t number) {
  const std::string digits = std::to_string(number);
  const auto is_digit = [&](size_t at) { return at < name.size() && name[at] >= '0' && name[at] <= '9'; };
  for (size_t at = name.find(digits); at != std::string::npos; at = name.find(digits, at + 1)) {
    if ((at == 0 || !is_digit(at - 1)) && !is_digit(at + digits.size())) return true;
  }
  return false;
}

// What torch, Python and we put the maker's number into. Names that others give may hold a number that happens to be
// that of a worker, as in a container, where those are small.
bool IsNamedByMaker(const std::string& name, pid_t number) {
  constexpr const char* kBegins[] = {"torch_", "pym-", "mp-", "sem.", "lockstep"};
  constexpr pid_t kSmall = 1000;
  const bool is_known = std::ranges::any_of(kBegins, [&](const char* begin) { return name.starts_with(begin); });
  return (is_known || number >= kSmall) && HoldsNumber(name, number);
}

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

}  // namespace

SharedMemory::SharedMemory(Poller& poller, const Clock& clock, const Workers& workers)
    : poller_(poller), clock_(clock), workers_(workers) {}

void SharedMemory::Watch(std::function<void()> noticed) {
  watch_ = Fd(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (inotify_add_watch(watch_.get(), kShmDir, IN_CREATE | IN_MOVED_TO) < 0) return;
  made_ = false;
  poller_.Watch(watch_.get(), [this, noticed = std::move(noticed)] {
    Hear();
    noticed();
    Tick();
  });
}

void SharedMemory::Hear() {
  std::array<char, 4096> news{};
  while (read(watch_.get(), news.data(), news.size()) > 0) made_ = new_ = true;
}

void SharedMemory::Begin() { before_ = ListShm(); }

void SharedMemory::Tick() {
  if (new_ && clock_.Now() - looked_ >= ToNanos(kPeriod)) Look();
}

void SharedMemory::Collect() {
  Hear();
  if (made_) Look();
}

void SharedMemory::Look() {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_.all())
    if (!worker.exited) pids.push_back(worker.pid);
  for (const pid_t pid : Families(std::move(pids))) {
    for (std::string& path : MappedShm(pid)) paths_.insert(std::move(path));
  }
  looked_ = clock_.Now();
  new_ = false;
}

void SharedMemory::Remove() {
  const std::vector<Worker>& workers = workers_.all();
  for (const auto& file : ListShm()) {
    const std::string path = kShmDir + file.first;
    const auto is_named = [&](const Worker& worker) { return IsNamedByMaker(file.first, worker.pid); };
    const bool ours = paths_.contains(path) || std::any_of(workers.begin(), workers.end(), is_named);
    if (ours && !before_.contains(file) && !MappedByAnyone(path)) unlink(path.c_str());
  }
  paths_.clear();
  RemoveSegments(workers);
}

}  // namespace lockstep::agent
