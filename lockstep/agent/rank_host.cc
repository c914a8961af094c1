#include "lockstep/agent/rank_host.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/agent/proc.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/json_text.h"

namespace lockstep::agent {
namespace {

constexpr int kImportLimitMs = 120'000, kForkLimitMs = 30'000;
constexpr size_t kRanksPerRequest = 32;  // two descriptors each, in one packet

absl::StatusOr<Json> Answer(int socket, int limit_ms) {
  pollfd waits{socket, POLLIN, 0};
  int ready = 0;
  while ((ready = poll(&waits, 1, limit_ms)) < 0 && errno == EINTR) {
  }
  if (ready <= 0) return Unavailable("no answer from the process that forks ranks within {} s", limit_ms / 1000);
  const std::optional<Packet> packet = ReceivePacket(socket);
  if (!packet || packet->closed) return Unavailable("the process that forks ranks has ended");
  Json answer = ParseJson(packet->text);
  if (!answer.is_object()) return Unavailable("the process that forks ranks said what can't be read");
  return answer;
}

absl::StatusOr<Fd> OpenLog(const std::string& path) {
  Fd log(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return Errno(errno, "{}", path);
  return log;
}

Environment Packages(const RankProgram& program, bool for_worker) {
  RunSpec spec;
  spec.package_dir = program.package_dir;
  spec.cwd = program.cwd;
  return PythonEnvironment(spec, for_worker);
}

Environment EnvironmentOf(const RankProgram& program, const RankStart& rank) {
  Environment environment = rank.environment;
  environment.merge(Packages(program, true));
  return environment;
}

}  // namespace

RankHost::RankHost(RankProgram program) : program_(std::move(program)) { prctl(PR_SET_CHILD_SUBREAPER, 1); }

RankHost::~RankHost() {
  EndZygote();
  KillAll();
}

// One thread each, for torch is imported with one and ranks share the cores.
absl::Status RankHost::BeginZygote() {
  tried_ = true;
  LS_ASSIGN_OR_RETURN(auto pair, MakeSocketPair());
  Environment environment = Packages(program_, false);
  for (const char* name : {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"})
    environment[name] = std::string("1");  // g++ 12 warns of the literal
  environment["LOCKSTEP_STARTER_FD"] = std::to_string(pair.second.get());
  LS_ASSIGN_OR_RETURN(zygote_pid_, StartProcess({program_.python, "-u", "-m", "lockstep._zygote"}, environment, "/",
                                                STDERR_FILENO, STDERR_FILENO, pair.second.get(), false));
  zygote_ = std::move(pair.first);
  pair.second.Close();
  LS_ASSIGN_OR_RETURN(const Json ready, Answer(zygote_.get(), kImportLimitMs));
  if (!ready.value("ok", false)) return FailedPrecondition("{}", ready.value("why", ""));
  return absl::OkStatus();
}

void RankHost::EndZygote() {
  zygote_.Close();
  if (zygote_pid_ == 0) return;
  KillTree(zygote_pid_);
  waitpid(zygote_pid_, nullptr, 0);
  zygote_pid_ = 0;
}

absl::StatusOr<std::vector<pid_t>> RankHost::Fork(const std::vector<RankStart>& ranks) {
  std::vector<Fd> logs;
  std::vector<int> descriptors;
  Json workers = Json::array();
  for (const RankStart& rank : ranks) {
    LS_ASSIGN_OR_RETURN(logs.emplace_back(), OpenLog(rank.log));
    descriptors.insert(descriptors.end(), 2, logs.back().get());
    workers.push_back({{"rank", workers.size()},
                       {"env", EnvironmentOf(program_, rank)},
                       {"threads", 1},
                       {"command", CommandOf(rank)}});
  }
  Json request = {{"op", "spawn"},       {"epoch", ++requests_},        {"module", program_.module},
                  {"cwd", program_.cwd}, {"changed", program_.changed}, {"workers", workers}};
  if (!program_.code.empty()) request["code"] = {{"from", program_.code_root}, {"to", program_.code}};
  const std::string text = OneLine(request);
  if (text.size() > kMostZygoteRequest)
    return Unavailable("ranks can't be forked: their variables and arguments take {} KiB, expected {} at most",
                       text.size() >> 10, kMostZygoteRequest >> 10);
  LS_RETURN_IF_ERROR(SendPacket(zygote_.get(), text, descriptors));
  LS_ASSIGN_OR_RETURN(const Json answer, Answer(zygote_.get(), kForkLimitMs));
  if (answer.value("event", "") != "spawned")
    return Unavailable("ranks can't be forked: {}", answer.value("error", ""));
  return answer.value("pids", std::vector<pid_t>{});
}

absl::StatusOr<pid_t> RankHost::Exec(const RankStart& rank) const {
  LS_ASSIGN_OR_RETURN(const Fd log, OpenLog(rank.log));
  Environment environment = EnvironmentOf(program_, rank);
  environment.try_emplace("OMP_NUM_THREADS", "1");
  std::vector<std::string> command = {program_.python, "-u"};
  if (program_.module) command.emplace_back("-m");
  if (program_.module && !program_.code.empty()) {
    command.emplace_back("lockstep._version");
    command.push_back(program_.code);
  }
  const std::vector<std::string>& script = CommandOf(rank);
  command.insert(command.end(), script.begin(), script.end());
  return StartProcess(command, environment, program_.cwd, log.get(), log.get(), -1, false);
}

absl::StatusOr<std::vector<pid_t>> RankHost::Start(const std::vector<RankStart>& ranks) {
  if (!tried_ && !program_.by_exec && !BeginZygote().ok()) EndZygote();
  std::vector<pid_t> pids;
  while (pids.size() < ranks.size()) {
    const auto begin = ranks.begin() + static_cast<std::ptrdiff_t>(pids.size());
    if (!zygote_.valid()) {
      LS_ASSIGN_OR_RETURN(pids.emplace_back(), Exec(*begin));
      continue;
    }
    const size_t count = std::min(kRanksPerRequest, ranks.size() - pids.size());
    LS_ASSIGN_OR_RETURN(const std::vector<pid_t> forked, Fork({begin, begin + static_cast<std::ptrdiff_t>(count)}));
    if (forked.size() != count) return Unavailable("{} of {} ranks were forked", forked.size(), count);
    pids.insert(pids.end(), forked.begin(), forked.end());
  }
  return pids;
}

void RankHost::KillAll() const {
  std::vector<pid_t> left;
  const auto others = [&] {
    left = Children(getpid());
    std::erase(left, zygote_pid_);
    return !left.empty();
  };
  while (others()) {  // what one leaves behind becomes ours
    for (const pid_t pid : left) KillTree(pid);
    for (const pid_t pid : left) waitpid(pid, nullptr, 0);
  }
}

}  // namespace lockstep::agent
