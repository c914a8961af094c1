#include "lockstep/agent/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/file.h"
#include "lockstep/base/split.h"

namespace lockstep::agent {

using detect::ProcState;
using detect::RankSample;

namespace {

using Buffer = std::array<char, 8192>;

// The fields of /proc/PID/stat that we use (proc(5)). What reaped children did counts for the parent.
struct Process {
  pid_t pid = 0, parent = 0;
  char state = 'X';
  uint64_t faults = 0;  // minor + major
  uint64_t ticks = 0;   // user + system
  uint64_t flags = 0;   // PF_*
  int exit_code = 0;    // as wait(2) tells it; 0 until it ends
};

// A /proc file is written anew for each read and fits here, or its head is what we need. Empty when it is gone or
// forbidden.
std::string_view ReadSmall(const std::string& path, Buffer& buffer) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return {};
  const ssize_t size = read(fd.get(), buffer.data(), buffer.size());
  return size > 0 ? std::string_view(buffer.data(), static_cast<size_t>(size)) : std::string_view{};
}

template <typename Int>
Int Number(std::string_view text) {
  Int value{};
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string_view NextWord(std::string_view& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());
  const size_t end = std::min(text.find_first_of(" \t\n", begin), text.size());
  const std::string_view word = text.substr(begin, end - begin);
  text.remove_prefix(end);
  return word;
}

// The number behind "Key:" at the start of a line; 0 if there is none.
uint64_t Value(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  while (at != std::string_view::npos && at != 0 && text[at - 1] != '\n') at = text.find(key, at + 1);
  if (at == std::string_view::npos) return 0;
  text.remove_prefix(at + key.size());
  return Number<uint64_t>(NextWord(text));
}

ProcState StateOf(char letter) {
  switch (letter) {
    case 'R':
      return ProcState::kRunning;
    case 'D':
      return ProcState::kDisk;
    case 'T':
      return ProcState::kStopped;
    case 'Z':
      return ProcState::kZombie;
    case 'X':
      return ProcState::kGone;
    default:
      return ProcState::kSleeping;
  }
}

constexpr uint64_t kExiting = 0x4;  // PF_EXITING of the kernel's sched.h

// Fields 3 (state) to 52 (exit_code) of what follows "pid (comm)", of which we want some.
std::optional<Process> ParseStat(pid_t pid, std::string_view text) {
  const size_t close = text.rfind(')');
  if (close == std::string_view::npos || close + 2 >= text.size()) return std::nullopt;
  text.remove_prefix(close + 1);
  std::array<std::string_view, 50> field;  // field[0] is the state, number 3 of proc(5)
  for (std::string_view& word : field) word = NextWord(text);
  const auto sum_of_four = [&](size_t first) {
    uint64_t total = 0;
    for (size_t number = first; number < first + 4; ++number) total += Number<uint64_t>(field[number - 3]);
    return total;
  };
  Process process;
  process.pid = pid;
  process.state = field[0].empty() ? 'X' : field[0].front();
  process.parent = Number<pid_t>(field[1]);
  process.flags = Number<uint64_t>(field[9 - 3]);
  process.exit_code = Number<int>(field[52 - 3]);
  process.faults = sum_of_four(10);
  process.ticks = sum_of_four(14);
  return process;
}

std::optional<Process> ReadStat(const std::string& root, pid_t pid) {
  Buffer buffer;
  return ParseStat(pid, ReadSmall(fmt::format("{}/{}/stat", root, pid), buffer));
}

void AddCounters(const std::string& root, const Process& process, RankSample& sample) {
  static const int64_t kNanosPerTick = 1'000'000'000 / sysconf(_SC_CLK_TCK);
  sample.cpu += Nanos{static_cast<int64_t>(process.ticks) * kNanosPerTick};
  sample.faults += process.faults;
  Buffer buffer;
  sample.switches +=
      Value(ReadSmall(fmt::format("{}/{}/status", root, process.pid), buffer), "voluntary_ctxt_switches:");
  const std::string_view io = ReadSmall(fmt::format("{}/{}/io", root, process.pid), buffer);
  sample.io_bytes += Value(io, "rchar:") + Value(io, "wchar:");
}

bool IsNumber(const char* name) { return name[0] >= '0' && name[0] <= '9'; }

template <typename Visit>
void ForEachEntry(const std::string& path, const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
  if (!dir) return;
  while (const dirent* entry = readdir(dir.get())) visit(entry->d_name);
}

constexpr std::string_view kShm = "/dev/shm/";
constexpr std::string_view kDeleted = " (deleted)";

void KeepShm(std::string_view path, std::vector<std::string>& paths) {
  if (path.starts_with(kShm) && !path.ends_with(kDeleted)) paths.emplace_back(path);
}

std::string LinkTarget(const std::string& path) {
  std::array<char, 512> target{};
  const ssize_t size = readlink(path.c_str(), target.data(), target.size());
  return size > 0 ? std::string(target.data(), static_cast<size_t>(size)) : std::string();
}

}  // namespace

ProcFs::ProcFs(std::string root) : root_(std::move(root)) {
  const absl::StatusOr<std::string> mounts = ReadFile(root_ + "/mounts");
  if (!mounts.ok()) return;
  freezer_mount_ = FindCgroupMount(*mounts, "freezer").value_or("");
  unified_mount_ = FindCgroupMount(*mounts, kUnified).value_or("");
}

const ProcFs& ProcFs::System() {
  static const ProcFs system;
  return system;
}

bool ProcFs::Frozen(pid_t pid) const {
  Buffer cgroups_buffer, buffer;
  const std::string_view cgroups = ReadSmall(fmt::format("{}/{}/cgroup", root_, pid), cgroups_buffer);
  const std::string_view freezer = CgroupPath(cgroups, "freezer").value_or(""),
                         unified = CgroupPath(cgroups, kUnified).value_or("");
  // The root groups can't be frozen and have no such files.
  if (freezer.size() > 1 && !freezer_mount_.empty()) {
    const std::string_view state = ReadSmall(fmt::format("{}{}/freezer.state", freezer_mount_, freezer), buffer);
    if (state.starts_with("FROZEN") || state.starts_with("FREEZING")) return true;
  }
  if (unified.size() <= 1 || unified_mount_.empty()) return false;
  return Value(ReadSmall(fmt::format("{}{}/cgroup.events", unified_mount_, unified), buffer), "frozen") == 1;
}

bool ProcFs::TracedByUs(pid_t tracer) const {
  const std::optional<Process> process = ReadStat(root_, tracer);
  return process && process->parent == getpid();
}

bool ProcFs::SampleCheap(pid_t pid, RankSample& sample) const {
  const std::optional<Process> process = ReadStat(root_, pid);
  sample.state = process ? StateOf(process->state) : ProcState::kGone;
  if (!process) return true;
  Buffer buffer;
  const auto tracer =
      static_cast<pid_t>(Value(ReadSmall(fmt::format("{}/{}/status", root_, pid), buffer), "TracerPid:"));
  const bool ours = tracer != 0 && TracedByUs(tracer);
  sample.traced = tracer != 0 && !ours;
  sample.frozen = Frozen(pid);
  return !ours;
}

std::optional<int> ProcFs::FailureBegun(pid_t pid) const {
  const std::optional<Process> process = ReadStat(root_, pid);
  if (!process || process->exit_code == 0) return std::nullopt;
  const bool ends = (process->flags & kExiting) != 0 || process->state == 'Z';
  return ends ? std::optional(process->exit_code) : std::nullopt;
}

bool ProcFs::SampleFull(pid_t pid, RankSample& sample) const {
  const bool own = SampleCheap(pid, sample);
  std::vector<pid_t> family = Descendants({pid});
  family.push_back(pid);
  for (const pid_t member : family) {
    if (const std::optional<Process> process = ReadStat(root_, member)) AddCounters(root_, *process, sample);
  }
  return own;
}

std::vector<pid_t> ProcFs::Pids() const {
  std::vector<pid_t> pids;
  ForEachEntry(root_, [&](const char* name) {
    if (IsNumber(name)) pids.push_back(Number<pid_t>(name));
  });
  return pids;
}

std::vector<pid_t> ProcFs::Children(pid_t pid) const {
  std::vector<pid_t> children;
  for (const pid_t candidate : Pids()) {
    const std::optional<Process> process = ReadStat(root_, candidate);
    if (process && process->parent == pid) children.push_back(candidate);
  }
  return children;
}

// One look at the table: a process that is born meanwhile may be missed, one that dies may be included.
std::vector<pid_t> ProcFs::Descendants(std::vector<pid_t> pids) const {
  std::vector<Process> table;
  for (const pid_t candidate : Pids()) {
    const std::optional<Process> process = ReadStat(root_, candidate);
    if (process) table.push_back(*process);
  }
  const auto roots = static_cast<std::ptrdiff_t>(pids.size());
  for (size_t next = 0; next < pids.size(); ++next)
    for (const Process& process : table)
      if (process.parent == pids[next] && std::find(pids.begin() + roots, pids.end(), process.pid) == pids.end())
        pids.push_back(process.pid);
  pids.erase(pids.begin(), pids.begin() + roots);
  return pids;
}

std::vector<std::string> ProcFs::MappedShm(pid_t pid) const {
  std::vector<std::string> paths;
  const absl::StatusOr<std::string> maps = ReadFile(fmt::format("{}/{}/maps", root_, pid));
  for (std::string_view rest = maps.ok() ? std::string_view(*maps) : std::string_view(); !rest.empty();) {
    const std::string_view line = TakeLine(rest);
    const size_t path = line.find('/');
    if (path != std::string_view::npos) KeepShm(line.substr(path), paths);
  }
  const std::string fds = fmt::format("{}/{}/fd", root_, pid);
  ForEachEntry(fds, [&](const char* name) { KeepShm(LinkTarget(fmt::format("{}/{}", fds, name)), paths); });
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

bool ProcFs::MappedByAnyone(const std::string& path) const {
  const std::vector<pid_t> pids = Pids();
  return std::any_of(pids.begin(), pids.end(), [&](pid_t pid) {
    const std::vector<std::string> mapped = MappedShm(pid);
    return std::binary_search(mapped.begin(), mapped.end(), path);
  });
}

}  // namespace lockstep::agent
