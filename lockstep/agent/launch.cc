#include "lockstep/agent/launch.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "lockstep/base/child.h"
#include "lockstep/base/open_files.h"
#include "lockstep/base/split.h"

extern char** environ;

namespace lockstep::agent {
namespace {

// Since 2.2 torch warns of the old name; before, it does not know the new one.
std::vector<const char*> AsyncErrorVariables(const std::string& torch) {
  constexpr const char* kOld = "NCCL_ASYNC_ERROR_HANDLING";
  constexpr const char* kNew = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
  if (torch.empty()) return {kOld, kNew};
  const bool old = torch.starts_with("1.") || torch.starts_with("2.0") || torch.starts_with("2.1.");
  return {old ? kOld : kNew};
}

// The same on all nodes, as torchrun has it. A job of one node is known by its name.
std::string RunId(const RunSpec& spec) {
  if (!spec.torchrun.run_id.empty()) return spec.torchrun.run_id;
  return spec.place.nodes > 1 ? "none" : spec.job;
}

void AddTorchrunContract(const RunSpec& spec, const EpochPlan& plan, int rank, Environment& environment) {
  const std::string own = std::to_string(GlobalRank(spec, rank).value()), all = std::to_string(spec.place.world_size);
  for (const char* name : {"RANK", "ROLE_RANK"}) environment[name] = own;
  for (const char* name : {"WORLD_SIZE", "ROLE_WORLD_SIZE"}) environment[name] = all;
  environment["LOCAL_RANK"] = std::to_string(rank);
  environment["LOCAL_WORLD_SIZE"] = std::to_string(spec.ranks);
  environment["GROUP_RANK"] = std::to_string(spec.place.node);
  environment["GROUP_WORLD_SIZE"] = std::to_string(spec.place.nodes);
  environment["ROLE_NAME"] = spec.torchrun.role;
  environment["MASTER_ADDR"] = plan.store_host;
  environment["MASTER_PORT"] = std::to_string(plan.store_port);
  environment["TORCHELASTIC_RESTART_COUNT"] = std::to_string(plan.restart_count);
  environment["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(spec.max_restarts);
  environment["TORCHELASTIC_RUN_ID"] = RunId(spec);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = plan.agent_store ? "True" : "False";
  // Rank 0 makes the store. Debian 13's torch is built without libuv, which torch 2 asks for unless told otherwise.
  if (!plan.agent_store && std::getenv("USE_LIBUV") == nullptr) environment["USE_LIBUV"] = "0";
  environment["TORCHELASTIC_ERROR_FILE"] = TorchErrorPath(spec, plan.epoch, plan.restart_count, rank);
  for (const char* name : AsyncErrorVariables(plan.torch)) {
    if (std::getenv(name) == nullptr) environment[name] = "1";
  }
  if (std::getenv("OMP_NUM_THREADS") == nullptr && spec.ranks > 1) environment["OMP_NUM_THREADS"] = "1";
  if (spec.torchrun.virtual_local_rank) AddVirtualLocalRank(rank, environment);
}

// As python/lockstep/_version.py: what a version has is found there, all else (and our package) where it was.
std::string MovedPath(const std::string& path, const RunSpec& spec, const EpochPlan& plan) {
  std::string moved;
  for (std::string entry : Split(path, ':')) {
    const bool ours = entry == spec.package_dir || entry == spec.package_dir + "/lockstep/_site";
    const bool inside = entry == plan.code_root || entry.starts_with(plan.code_root + "/");
    const std::string there = inside && !ours ? plan.code + entry.substr(plan.code_root.size()) : "";
    if (!there.empty() && access(there.c_str(), F_OK) == 0) entry = there;
    moved += (moved.empty() ? "" : ":") + entry;
  }
  return moved;
}

// Everything the child needs is laid out before fork: between fork and exec only async-signal-safe calls.
struct ChildImage {
  std::vector<std::string> strings;
  std::vector<char*> argv, envp;
  size_t pid_variable = 0;
};

constexpr char kPidVariable[] = "LOCKSTEP_WORKER_PID";

// Of two entries of one name a process sees the first, so what is set anew must not be inherited too.
bool Overlaid(const Environment& extra, const char* entry) {
  const char* equals = std::strchr(entry, '=');
  if (equals == nullptr) return false;
  const std::string name(entry, equals);
  return extra.contains(name) || name == kPidVariable;
}

ChildImage MakeImage(const std::vector<std::string>& argv, const Environment& extra) {
  ChildImage image;
  image.strings = argv;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!Overlaid(extra, *entry)) image.strings.emplace_back(*entry);
  }
  for (const auto& [name, value] : extra) image.strings.push_back(name + "=" + value);
  image.pid_variable = image.strings.size() - argv.size();
  image.strings.push_back(std::string(kPidVariable) + "=0000000000");
  for (size_t i = 0; i < image.strings.size(); ++i)
    (i < argv.size() ? image.argv : image.envp).push_back(image.strings[i].data());
  image.argv.push_back(nullptr);
  image.envp.push_back(nullptr);
  return image;
}

void WritePid(char* entry, pid_t pid) {
  char digits[16];
  int count = 0;
  for (; pid > 0; pid /= 10) digits[count++] = static_cast<char>('0' + pid % 10);
  char* to = std::strchr(entry, '=') + 1;
  while (count > 0) *to++ = digits[--count];
  *to = '\0';
}

[[noreturn]] void RunChild(ChildImage& image, const char* cwd, int out, int err, int inherit, int failure_pipe) {
  setsid();
  WritePid(image.envp[image.pid_variable], getpid());
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGXFSZ}) signal(number, SIG_DFL);  // cli/main.cc ignores the latter
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(out, 1);
  dup2(err, 2);
  if (null > 2) close(null);
  if (inherit >= 0) fcntl(inherit, F_SETFD, 0);
  RestoreOpenFiles();
  if (chdir(cwd) == 0) execvpe(image.argv[0], image.argv.data(), image.envp.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t wrote = write(failure_pipe, &error, sizeof(error));
  _exit(127);
}

}  // namespace

std::string Lookup(const Environment& extra, const std::string& name, const std::string& fallback) {
  if (const auto found = extra.find(name); found != extra.end()) return found->second;
  const char* inherited = std::getenv(name.c_str());
  return inherited != nullptr ? inherited : fallback;
}

// Entries of the user's may be relative to the working directory, and an empty one is it: our own processes begin in
// another.
Environment PythonEnvironment(const RunSpec& spec, bool for_worker) {
  std::string path = spec.package_dir;
  if (for_worker) path = spec.package_dir + "/lockstep/_site:" + path;
  const std::string inherited = Lookup({}, "PYTHONPATH", "");
  if (inherited.empty()) return {{"PYTHONPATH", path}};
  for (const std::string& entry : Split(inherited + ":", ':'))  // or an empty one at the end would be lost
    path += ":" + (std::filesystem::path(spec.cwd) / entry).lexically_normal().string();
  return {{"PYTHONPATH", path}};
}

Environment WorkerEnvironment(const RunSpec& spec, const EpochPlan& plan, int rank) {
  Environment environment = PythonEnvironment(spec, true);
  AddTorchrunContract(spec, plan, rank, environment);
  environment["LOCKSTEP_RUN"] = spec.run_dir;
  environment["LOCKSTEP_JOB"] = spec.job;
  environment["LOCKSTEP_RANK"] = std::to_string(GlobalRank(spec, rank).value());
  environment["LOCKSTEP_EPOCH"] = std::to_string(plan.epoch);
  environment["LOCKSTEP_CLIENT_LIB"] = spec.client_lib;
  if (!spec.checkpoint_dir.empty()) {  // for restore(reshape=...)
    environment["LOCKSTEP_CHECKPOINT_DIR"] = spec.checkpoint_dir;
    environment["LOCKSTEP_BINARY"] = Lookup({}, "LOCKSTEP_BINARY", OwnBinary().value_or(""));
  }
  if (!spec.feeds.empty()) environment["LOCKSTEP_FEED_DIR"] = FeedDir(spec);
  if (KeepsTrails(spec)) environment["LOCKSTEP_TRAILS"] = TrailsDir(spec);
  if (!spec.nccl_lib.empty())
    environment["NCCL_PROFILER_PLUGIN"] = std::filesystem::path(spec.nccl_lib).filename().string();
  environment["LOCKSTEP_STACKS_FILE"] = StacksPath(spec, plan.epoch, rank);
  environment["LOCKSTEP_ERROR_FILE"] = ErrorPath(spec, plan.epoch, rank);
  if (spec.allow_drill) environment["LOCKSTEP_DRILL_FILE"] = DrillPath(spec, plan.epoch, rank);
  AddVersion(spec, plan, environment);
  AddNcclFolder(spec, environment);  // before what the version has set, too
  return environment;
}

// NCCL 2.27.3 takes a plugin by its name alone.
void AddNcclFolder(const RunSpec& spec, Environment& environment) {
  if (spec.nccl_lib.empty()) return;
  const std::string others = Lookup(environment, "LD_LIBRARY_PATH", "");  // an empty entry is the working directory
  environment["LD_LIBRARY_PATH"] =
      std::filesystem::path(spec.nccl_lib).parent_path().string() + (others.empty() ? "" : ":" + others);
}

// As torch 2.9: every worker sees its GPU as device 0.
void AddVirtualLocalRank(int rank, Environment& environment) {
  environment["LOCAL_RANK"] = "0";
  const std::vector<std::string> visible = Split(Lookup({}, "CUDA_VISIBLE_DEVICES", ""), ',');
  const auto index = static_cast<size_t>(rank);
  environment["CUDA_VISIBLE_DEVICES"] = index < visible.size() ? visible[index] : std::to_string(rank);
}

void AddVersion(const RunSpec& spec, const EpochPlan& plan, Environment& environment) {
  environment["LOCKSTEP_CODE_VERSION"] = std::to_string(plan.version);
  if (!plan.code.empty()) environment["PYTHONPATH"] = MovedPath(environment["PYTHONPATH"], spec, plan);
  for (const auto& [name, value] : plan.environment) environment[name] = value;
}

std::string WhyNotSet(const std::string& name) {
  const bool is_name =
      !name.empty() && name.find_first_not_of(kNameLetters) == std::string::npos && (name[0] < '0' || name[0] > '9');
  if (!is_name) return "it is no name of a variable";
  const Environment own = WorkerEnvironment(RunSpec{}, {}, 0);
  constexpr std::array<const char*, 4> kDefaults = {"OMP_NUM_THREADS", "USE_LIBUV", "NCCL_ASYNC_ERROR_HANDLING",
                                                    "TORCH_NCCL_ASYNC_ERROR_HANDLING"};
  const bool is_default = std::find(kDefaults.begin(), kDefaults.end(), name) != kDefaults.end();
  const bool ours = name.starts_with("LOCKSTEP_") || name == "LD_PRELOAD" || (own.contains(name) && !is_default);
  return ours ? "Lockstep sets it for every worker" : "";
}

std::vector<std::string> ScriptCommand(const RunSpec& spec, int rank, const std::string& code) {
  std::vector<std::string> command;
  command.reserve(spec.command.size());
  for (const std::string& word : spec.command)
    command.push_back(Substituted(word, {{"local_rank", std::to_string(rank)}}));
  if (!code.empty() && !spec.module)
    command.front() = code + "/" + command.front().substr(command.front().rfind('/') + 1);
  return command;
}

std::vector<std::string> WorkerCommand(const RunSpec& spec, int rank, const std::string& code) {
  if (spec.torchrun.no_python) return ScriptCommand(spec, rank, code);
  std::vector<std::string> command = {spec.python, "-u"};
  if (spec.module) command.emplace_back("-m");
  // Python itself would put the working directory first on its path.
  if (spec.module && !code.empty()) command.insert(command.end(), {"lockstep._version", code});
  for (std::string& word : ScriptCommand(spec, rank, code)) command.push_back(std::move(word));
  return command;
}

absl::StatusOr<pid_t> StartProcess(const std::vector<std::string>& argv, const Environment& extra,
                                   const std::string& cwd, int out, int err, int inherit, bool outlives_us) {
  ChildImage image = MakeImage(argv, extra);
  LS_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  const pid_t own = getpid(), pid = fork();
  if (pid < 0) {
    const std::string what = fmt::format("forking a process for {}", argv[0]);
    if (errno != EAGAIN) return Errno(errno, "{}", what);
    return Unavailable("{}: there may be no more processes; raise `ulimit -u`, or pids.max of the cgroup", what);
  }
  if (pid == 0 && !outlives_us) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != own) _exit(127);  // it has ended already
  }
  if (pid == 0) RunChild(image, cwd.c_str(), out, err, inherit, failure.write.get());
  failure.write.Close();
  int error = 0;
  if (read(failure.read.get(), &error, sizeof(error)) != sizeof(error)) return pid;  // closed by a successful exec
  waitpid(pid, nullptr, 0);
  return Errno(error, "starting {} in {}", argv[0], cwd);
}

absl::StatusOr<int> FreePort(int wanted) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);  // where the store will listen
  address.sin_port = htons(static_cast<uint16_t>(wanted));
  socklen_t length = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (wanted != 0) return FreePort(0);
    return Errno(errno, "binding a free port");
  }
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

}  // namespace lockstep::agent
