#include "lockstep/agent/python_host.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/agent/collectors.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/json_text.h"
#include "lockstep/base/log.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kAnswer{15};                      // a fork takes 0.01 s; a helper that is stopped answers never
constexpr Seconds kImport{120};                     // of torch, from a file system that is slow
constexpr Seconds kSlowImport{60}, kNoImport{600};  // by the zygote, for which all wait: said, given up
constexpr const char* kThreadVariables[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"};

// One thread during the import, so that the fork is safe; what workers shall see instead travels beside it.
void PinThreads(Environment& environment) {
  Json restore = Json::object();
  for (const char* name : kThreadVariables) {
    const char* value = std::getenv(name);
    restore[name] = value != nullptr ? Json(value) : Json(nullptr);
    environment[name] = "1";
  }
  environment["LOCKSTEP_ZYGOTE_RESTORE"] = OneLine(restore);
}

int WantedThreads(const Environment& worker) {
  const int wanted = std::atoi(Lookup(worker, "OMP_NUM_THREADS", "0").c_str());
  return wanted > 0 ? wanted : static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

Json SpawnRequest(const RunSpec& spec, const EpochPlan& plan, const std::vector<int>& ranks) {
  Json workers = Json::array();
  for (const int rank : ranks) {
    const Environment environment = WorkerEnvironment(spec, plan, rank);
    workers.push_back({{"rank", rank},
                       {"env", environment},
                       {"threads", WantedThreads(environment)},
                       {"command", ScriptCommand(spec, rank, plan.code)}});
  }
  return {{"op", "spawn"},
          {"epoch", plan.epoch},
          {"module", spec.module},
          {"cwd", spec.cwd},
          {"code", {{"from", plan.code_root}, {"to", plan.code}}},
          {"changed", plan.environment},
          {"workers", workers}};
}

}  // namespace

PythonHost::PythonHost(const RunSpec& spec, const Clock& clock, Poller& poller, Listener listener)
    : spec_(spec), clock_(clock), poller_(poller), listener_(std::move(listener)) {}

PythonHost::~PythonHost() {
  for (const pid_t helper : {zygote_pid_, store_pid_})
    if (helper > 0) KillTree(helper);
}

void PythonHost::Start() {
  if (spec_.start_method == StartMethod::kExec || spec_.torchrun.no_python) {
    known_ = true;
    why_ = spec_.torchrun.no_python ? "--no-python" : "--start-method exec";
    StartStoreHost();
    listener_.ready();
  } else {
    StartZygote();
  }
}

void PythonHost::StartZygote() {
  auto pair = MakeSocketPair();
  if (!pair.ok()) return ZygoteLost(Message(pair.status()));
  Environment environment = PythonEnvironment(spec_, false);
  PinThreads(environment);
  AddCollectors(spec_, environment);
  AddNcclFolder(spec_, environment);
  environment["LOCKSTEP_ZYGOTE_PRELOAD"] = Lookup(environment, "LD_PRELOAD", "");
  environment["LOCKSTEP_STARTER_FD"] = std::to_string(pair->second.get());
  auto pid = StartProcess({spec_.python, "-u", "-m", "lockstep._zygote"}, environment, "/", STDERR_FILENO,
                          STDERR_FILENO, pair->second.get(), false);
  if (!pid.ok()) return ZygoteLost(Message(pid.status()));
  zygote_pid_ = *pid;
  import_began_ = clock_.Now();
  zygote_ = std::move(pair->first);
  poller_.Watch(zygote_.get(), [this] { HearZygote(); });
}

bool PythonHost::HearZygote() {
  const std::optional<Packet> packet = ReceivePacket(zygote_.get());
  if (packet) TakeFromZygote(*packet);
  return packet.has_value();
}

void PythonHost::TakeFromZygote(const Packet& packet) {
  if (packet.closed) return ZygoteLost("the zygote process ended");
  const Json message = ParseJson(packet.text);
  if (!message.is_object()) return ZygoteLost("the zygote process said what can't be read");
  const std::string event = message.value("event", "");
  if (event == "ready") {
    known_ = true;
    zygote_ok_ = message.value("ok", false);
    torch_ = message.value("torch", "");
    has_torch_ = !torch_.empty();
    why_ = message.value("why", "");
    if (has_torch_) StartStoreHost();
    listener_.ready();
  } else if (event == "store_host") {
    store_pid_ = message.value("pid", 0);
  } else if (event == "spawned") {
    spawn_asked_ = 0;
    listener_.spawned(message.value("epoch", uint64_t{0}), message.value("pids", std::vector<pid_t>{}));
  } else if (event == "spawn_failed") {
    spawn_asked_ = 0;
    listener_.spawn_failed(message.value("epoch", uint64_t{0}), message.value("error", ""));
  }
}

void PythonHost::ZygoteLost(const std::string& why) {
  if (zygote_.valid()) poller_.Forget(zygote_.get());
  zygote_.Close();
  if (zygote_pid_ > 0) KillTree(zygote_pid_);
  if (known_ && zygote_ok_) listener_.note("workers start by exec from now on: " + why);
  zygote_ok_ = false;
  if (why_.empty()) why_ = why;
  const uint64_t waiting = std::exchange(spawn_asked_, 0);
  if (!std::exchange(known_, true)) listener_.ready();
  if (waiting != 0) listener_.unspawned(waiting);
}

// From the zygote where there is one (10 ms, shared pages), else by exec (pays the import of torch once per run).
void PythonHost::StartStoreHost() {
  auto pair = MakeSocketPair();
  if (!pair.ok()) return;
  store_ = std::move(pair->first);
  poller_.Watch(store_.get(), [this] { HearStore(); });
  if (zygote_.valid()) {
    const int fds[] = {pair->second.get()};
    store_imports_ = false;
    if (SendPacket(zygote_.get(), R"({"op":"store"})", fds).ok()) return;
  }
  store_imports_ = true;
  Environment environment = PythonEnvironment(spec_, false);
  environment["LOCKSTEP_STARTER_FD"] = std::to_string(pair->second.get());
  auto pid = StartProcess({spec_.python, "-u", "-m", "lockstep._store"}, environment, "/", STDERR_FILENO, STDERR_FILENO,
                          pair->second.get(), false);
  if (!pid.ok()) return StoreLost();
  store_pid_ = *pid;
}

void PythonHost::AskStore(uint64_t epoch, int port) {
  if (!store_.valid() && has_torch_) StartStoreHost();
  store_asked_ = epoch;
  store_by_ = clock_.Now() + ToNanos(store_imports_ ? kImport : kAnswer);
  const Json request = {{"op", "store"},
                        {"epoch", epoch},
                        {"world_size", spec_.place.world_size},
                        {"host", spec_.torchrun.master_addr},
                        {"port", port}};
  if (!store_.valid() || !SendPacket(store_.get(), OneLine(request)).ok()) StoreLost();
}

bool PythonHost::HearStore() {
  const std::optional<Packet> packet = ReceivePacket(store_.get());
  if (packet) TakeFromStore(*packet);
  return packet.has_value();
}

void PythonHost::TakeFromStore(const Packet& packet) {
  if (packet.closed) return StoreLost();
  const Json message = ParseJson(packet.text);
  if (!message.is_object()) return StoreLost();
  store_imports_ = false;
  const auto epoch = message.value("epoch", uint64_t{0});
  if (epoch == 0 || epoch != store_asked_) return;  // of an epoch before: the other answer follows
  store_asked_ = 0;
  const int port = message.value("port", 0);
  torch_ = message.value("torch", torch_);
  if (port == 0) {
    const std::string why = message.value("error", "");
    if (!std::exchange(store_refused_, true)) listener_.note("rank 0 hosts the rendezvous store: " + why);
  } else {
    has_torch_ = true;
    if (const std::string refused = message.value("refused", ""); !refused.empty())
      listener_.note(fmt::format("--master-port {} can't be had ({}): MASTER_PORT is {}", spec_.torchrun.master_port,
                                 refused, port));
  }
  listener_.store(epoch, port);
}

void PythonHost::StoreLost() {
  if (store_.valid()) poller_.Forget(store_.get());
  store_.Close();
  if (const uint64_t epoch = std::exchange(store_asked_, 0); epoch != 0) listener_.store(epoch, 0);
}

bool PythonHost::Spawn(const EpochPlan& plan, const std::vector<int>& ranks, const std::vector<Stdio>& stdio) {
  const std::string request = OneLine(SpawnRequest(spec_, plan, ranks));
  if (request.size() > kMostZygoteRequest) {
    listener_.note(
        fmt::format("workers start by exec: their variables and arguments take {} KiB, the zygote is told {} at most",
                    request.size() >> 10, kMostZygoteRequest >> 10));
    return false;
  }
  std::vector<int> fds;
  for (const int rank : ranks) {
    fds.push_back(stdio[static_cast<size_t>(rank)].out.get());
    fds.push_back(stdio[static_cast<size_t>(rank)].err.get());
  }
  const absl::Status sent = SendPacket(zygote_.get(), request, fds);
  if (!sent.ok()) {
    ZygoteLost(Message(sent));
    return false;
  }
  spawn_asked_ = plan.epoch;
  spawn_by_ = clock_.Now() + ToNanos(kAnswer);
  return true;
}

void PythonHost::Tick() {
  const Nanos now = clock_.Now();
  const auto imports_for = [&](Seconds least) { return !known_ && now - import_began_ >= ToNanos(least); };
  const auto spawn_is_late = [&] { return spawn_asked_ != 0 && now >= spawn_by_; };
  const auto store_is_late = [&] { return store_asked_ != 0 && now >= store_by_; };
  // What is late may be here: we too may have been stopped.
  while ((imports_for(kSlowImport) || spawn_is_late()) && HearZygote()) {
  }
  while (store_is_late() && HearStore()) {
  }
  if (imports_for(kSlowImport) && !std::exchange(told_slow_, true))
    listener_.note(fmt::format("{}: still importing torch after {} s; without it after {} s workers start by exec",
                               spec_.node_name, kSlowImport.value, kNoImport.value));
  if (imports_for(kNoImport))
    ZygoteLost(fmt::format("the zygote process had not imported torch within {} s and was killed", kNoImport.value));
  if (spawn_is_late())
    ZygoteLost(fmt::format("the zygote process did not answer within {} s and was killed", kAnswer.value));
  if (store_is_late()) {
    if (store_pid_ > 0) KillTree(store_pid_);
    listener_.note("rank 0 hosts the rendezvous store: its host did not answer in time and was killed");
    StoreLost();
  }
}

void PythonHost::Reaped(pid_t pid) {
  if (pid == zygote_pid_) zygote_pid_ = 0;
  if (pid == store_pid_) store_pid_ = 0;
}

}  // namespace lockstep::agent
