#include "lockstep/drill/group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "lockstep/base/cgroup.h"
#include "lockstep/base/file.h"
#include "lockstep/base/log.h"

namespace lockstep::drill {
namespace {

namespace fs = std::filesystem;

constexpr char kPrefix[] = "lockstep-drill-";
constexpr int kRemoveTries = 200;  // of 10 ms: a group holds a process until that is reaped
constexpr int kPeriodUs = 100'000;

struct Mount {
  std::string path;
  bool unified = false;
};

// Where the controller is mounted: v1 if it is there, else v2.
absl::StatusOr<Mount> FindMount(const std::string& controller) {
  LS_ASSIGN_OR_RETURN(const std::string mounts, ReadFile("/proc/self/mounts"));
  if (const auto own = FindCgroupMount(mounts, controller)) return Mount{std::string(*own), false};
  if (const auto unified = FindCgroupMount(mounts, kUnified)) return Mount{std::string(*unified), true};
  return FailedPrecondition("no cgroup file system with {} is mounted", controller);
}

// The path of the process's group below the mount: "/" is the root.
std::string GroupOf(pid_t pid, const std::string& controller, bool unified) {
  const std::string groups = ReadFile(fmt::format("/proc/{}/cgroup", pid)).value_or("");
  return std::string(CgroupPath(groups, unified ? kUnified : controller).value_or("/"));
}

// v2 lets a group hold processes or hand controllers down, not both: so beside the process's own group, not below it.
fs::path ParentFor(const fs::path& home, const Mount& mount) {
  return mount.unified && home != fs::path(mount.path) ? home.parent_path() : home;
}

// A v2 controller must be handed down by the parent; turning it on there would change what is not ours.
absl::Status CheckHandedDown(const fs::path& parent) {
  const absl::StatusOr<std::string> enabled = ReadFile(parent / "cgroup.subtree_control");
  std::istringstream words(enabled.ok() ? *enabled : "");
  for (std::string word; words >> word;) {
    if (word == "cpu") return absl::OkStatus();
  }
  return FailedPrecondition("{} does not hand the cpu controller down", parent.string());
}

// Of a drill that was killed.
bool IsStale(const std::string& name) {
  if (!name.starts_with(kPrefix)) return false;
  const pid_t owner = std::atoi(name.c_str() + sizeof(kPrefix) - 1);
  return owner > 0 && kill(owner, 0) != 0 && errno == ESRCH;
}

}  // namespace

void Group::RemoveStale(const std::string& parent, bool unified) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    if (!IsStale(entry.path().filename())) continue;
    Group group(entry.path(), parent, unified);
    group.frozen_ = true;  // perhaps; it is thawed now
  }
}

absl::StatusOr<std::unique_ptr<Group>> Group::Make(Controller controller, pid_t pid) {
  static int made = 0;
  const std::string name = controller == Controller::kCpu ? "cpu" : "freezer";
  if (geteuid() != 0) return FailedPrecondition("a cgroup needs root");
  LS_ASSIGN_OR_RETURN(const Mount mount, FindMount(name));
  fs::path home = mount.path + GroupOf(pid, name, mount.unified);
  if (home.filename().empty()) home = home.parent_path();  // a slash at the end
  if (!fs::exists(home)) home = mount.path;
  const fs::path parent = ParentFor(home, mount);
  if (mount.unified && controller == Controller::kCpu) LS_RETURN_IF_ERROR(CheckHandedDown(parent));
  RemoveStale(parent, mount.unified);
  const fs::path path = parent / fmt::format("{}{}-{}", kPrefix, getpid(), ++made);
  if (mkdir(path.c_str(), 0755) != 0) return Errno(errno, "making the cgroup {}", path.string());
  std::unique_ptr<Group> group(new Group(path, home, mount.unified));
  group->pid_ = pid;
  return group;
}

absl::Status Group::Write(const std::string& file, const std::string& text) {
  const std::string path = path_ + "/" + file;
  const Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) < 0) return Errno(errno, "writing {} to {}", text, path);
  return absl::OkStatus();
}

absl::Status Group::Freeze() {
  LS_RETURN_IF_ERROR(Take(pid_));
  frozen_ = true;
  return unified_ ? Write("cgroup.freeze", "1") : Write("freezer.state", "FROZEN");
}

absl::Status Group::Limit(int share) {
  const int quota = kPeriodUs / 100 * share;
  if (unified_) {
    LS_RETURN_IF_ERROR(Write("cpu.max", fmt::format("{} {}", quota, kPeriodUs)));
  } else {
    LS_RETURN_IF_ERROR(Write("cpu.cfs_period_us", std::to_string(kPeriodUs)));
    LS_RETURN_IF_ERROR(Write("cpu.cfs_quota_us", std::to_string(quota)));
  }
  return Take(pid_);
}

absl::Status Group::Take(pid_t pid) { return Write("cgroup.procs", std::to_string(pid)); }

void Group::Lift() {
  if (frozen_) (void)(unified_ ? Write("cgroup.freeze", "0") : Write("freezer.state", "THAWED"));
}

// Children that the process has made meanwhile are in the group too.
void Group::Empty() {
  const absl::StatusOr<std::string> members = ReadFile(path_ + "/cgroup.procs");
  const Fd home(open((home_ + "/cgroup.procs").c_str(), O_WRONLY | O_CLOEXEC));
  std::istringstream pids(members.ok() ? *members : "");
  for (std::string pid; pids >> pid;) {
    [[maybe_unused]] const ssize_t moved = write(home.get(), pid.data(), pid.size());  // it may be on its way out
  }
}

Group::~Group() {
  Lift();
  for (int i = 0; i < kRemoveTries; ++i) {
    Empty();
    if (rmdir(path_.c_str()) == 0 || errno == ENOENT) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Log(LogLevel::kWarning, "the cgroup {} could not be removed: {}", path_, Message(ErrnoError(errno, "rmdir")));
}

}  // namespace lockstep::drill
