#include "lockstep/agent/starter.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "lockstep/agent/agent_port.h"
#include "lockstep/agent/buffers.h"
#include "lockstep/agent/collectors.h"
#include "lockstep/agent/epoch_store.h"
#include "lockstep/agent/exception.h"
#include "lockstep/agent/feed_host.h"
#include "lockstep/agent/joining.h"
#include "lockstep/agent/last_watched.h"
#include "lockstep/agent/launch.h"
#include "lockstep/agent/near.h"
#include "lockstep/agent/output.h"
#include "lockstep/agent/proc.h"
#include "lockstep/agent/python_host.h"
#include "lockstep/agent/restartable_ranks.h"
#include "lockstep/agent/shared_memory.h"
#include "lockstep/agent/spec.h"
#include "lockstep/agent/wire.h"
#include "lockstep/agent/workers.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/log.h"
#include "lockstep/base/open_files.h"
#include "lockstep/base/poller.h"
#include "lockstep/checkpoint/budget.h"

namespace lockstep::agent {
namespace {

constexpr Seconds kRecall{1.5};                    // for ranks that are to leave their training function; most need 0.2
constexpr Seconds kBusyTick{0.1}, kIdleTick{1.0};  // each tick takes a core away from a rank for a moment
constexpr Seconds kNearTick{0.001};                // while a checkpoint is near
constexpr Seconds kLostZygoteEnds{10};             // for what a lost zygote had forked, before workers start by exec
constexpr Seconds kStuckEnd{10};                   // for processes that hang in the kernel, before it leaves them

class Starter {
 public:
  Starter(RunSpec spec, BoardMap board);
  absl::Status Listen();
  absl::Status StartFeeds() { return feeds_.Start(); }
  void Run();

 private:
  void MakeErrorRooms() const;
  void Obey(const Json& request, std::vector<Fd>& fds);
  void Seat(const control::Place& place);
  void Note(const std::string& text) { agent_.Tell({{"event", "note"}, {"text", text}}); }
  void AgentLeft();
  void TellDropped();
  std::string StartMethodNow() const;
  void TellStartMethod();
  void SayHello();
  void TellRing(size_t rank);
  void TellBuffers(size_t rank);
  bool IsWorker(pid_t pid, int rank) const;  // rank: of the job
  void Joined(const ls_join_message& request);

  void BeginEpoch(const EpochPlan& plan);
  void TellItEnded(uint64_t epoch);
  void StartWorkers(EpochPlan& plan);
  void KeepThoseThatWait(const EpochPlan& plan, const std::vector<Stdio>& stdio);
  void SpawnByExec(const EpochPlan& plan, const std::vector<int>& ranks, const std::vector<Stdio>& stdio);
  void EpochRuns(uint64_t epoch, const std::vector<pid_t>& pids);
  void TellSpawned();
  void SpawnFailed(uint64_t epoch, const std::string& error);
  void Unspawned(uint64_t epoch);
  void StartByExec();

  void KillEpoch(uint64_t epoch, Seconds grace, int signal = SIGTERM, const std::vector<int>& suspects = {});
  bool IsNear();
  void EndNow();
  bool Recall();
  // It runs no training of ours any more.
  bool IsGone(const Worker& worker) const { return worker.exited || (!ending_ && restartable_.Waits(worker.pid)); }
  bool AllGone() const;
  void AskToEnd(int signal, Seconds grace);
  bool LeftSomething(const Worker& worker) const;
  void TellDeaf();
  void ForceKill();
  void Reap();
  void TellExit(const Worker& worker);
  void StopIfAllGone();
  std::vector<pid_t> KillLeftOvers() const;
  void End();
  void LeaveTheStuck();
  void Tick();

  RunSpec spec_;
  SystemClock clock_;
  Poller poller_;
  AgentPort agent_;
  Buffers buffers_;
  PythonHost host_;
  EpochStore store_;
  FeedHost feeds_;
  Output output_;
  Workers workers_;
  RestartableRanks restartable_;
  std::map<int, pid_t> kept_;  // by rank: those that enter the epoch that is being spawned in their old process
  SharedMemory shared_memory_;
  int workers_restarts_ = 0;  // restarts before it
  Joining joining_;
  Fd directory_, signals_;
  std::optional<EpochPlan> plan_;  // being spawned
  Nanos exec_by_;  // its zygote is lost: what that has forked ends first, or has until then; 0 = it is not
  DroppedOutput told_;
  std::string told_start_method_;
  bool killing_ = false, ending_ = false;
  bool watched_ = false;       // whoever is connected has asked for something
  bool forked_ = false;        // the workers of the epoch, by the zygote
  bool anew_ = false;          // the next epoch runs another version: nobody is asked to leave by himself
  int workers_version_ = 0;    // of the epoch that runs, or ran last
  uint64_t asked_epoch_ = 0;   // the newest epoch that was to be killed; it may never have had a worker
  std::vector<int> suspects_;  // of that epoch's end: they are not asked to leave by themselves
  Nanos near_until_;           // a checkpoint is near: they go on until then at most; 0 = it is not
  Nanos force_at_;             // SIGKILL then; 0 = never or done
  Seconds grace_;              // that a user's stop gives until then
  Nanos leave_at_;             // once we are to end: without those that were killed and do not end
};

// Every rank will ask for about as much, so the first to ask decides for all: refused before training, not in the
// middle.
absl::Status CheckBudget(const RunSpec& spec, const Buffers& buffers, Bytes per_slot) {
  LS_ASSIGN_OR_RETURN(const Bytes available, checkpoint::AvailableMemory({}));
  Bytes held;
  for (const RankBuffers& own : buffers.ranks()) held += Bytes{LS_SLOTS * own.slot_bytes};
  return checkpoint::CheckBudget(
      {.ranks = spec.ranks, .per_slot = per_slot, .held = held, .limit = spec.checkpoint_budget}, available);
}

Starter::Starter(RunSpec spec, BoardMap board)
    : spec_(std::move(spec)),
      agent_(poller_, clock_,
             {.connected = [this] { SayHello(); },
              .asked = [this](const Json& request, std::vector<Fd>& fds) { Obey(request, fds); },
              .left = [this] { AgentLeft(); },
              .waiting = [this] { poller_.SetPeriod(kBusyTick); }}),
      buffers_(std::move(board), [this](Bytes per_slot) { return CheckBudget(spec_, buffers_, per_slot); }),
      host_(spec_, clock_, poller_,
            {.ready =
                 [this] {
                   if (!host_.why().empty()) Note("workers start by exec: " + host_.why());
                   store_.HostIsKnown();
                   if (plan_) StartWorkers(*plan_);
                 },
             .store = [this](uint64_t epoch, int port) { store_.Answered(epoch, port); },
             .spawned = [this](uint64_t epoch, const std::vector<pid_t>& pids) { EpochRuns(epoch, pids); },
             .spawn_failed = [this](uint64_t epoch, const std::string& error) { SpawnFailed(epoch, error); },
             .unspawned = [this](uint64_t epoch) { Unspawned(epoch); },
             .note = [this](const std::string& text) { Note(text); }}),
      store_(spec_, host_,
             {.is_at =
                  [this](uint64_t epoch, int port, bool hosted) {
                    agent_.Tell({{"event", "store"}, {"epoch", epoch}, {"port", port}, {"hosted", hosted}});
                  },
              .failed = [this](uint64_t epoch, const std::string& error) { SpawnFailed(epoch, error); },
              .note = [this](const std::string& text) { Note(text); }}),
      feeds_(spec_, clock_, [this](const std::string& text) { Note(text); }),
      output_(spec_, poller_,
              [this](int rank, int stream, std::string_view data) { agent_.TellOutput(rank, stream, data); }),
      restartable_(poller_,
                   [this] {
                     if (killing_) StopIfAllGone();
                   }),
      shared_memory_(poller_, clock_, workers_),
      joining_(poller_, buffers_,
               {.is_worker = [this](pid_t pid, int rank) { return IsWorker(pid, rank); },
                .answered = [this](const ls_join_message& request) { Joined(request); },
                .refused = [this](const ls_join_message& request,
                                  const std::string& why) { Note(fmt::format("rank {}: {}", request.rank, why)); }}) {}

absl::Status Starter::Listen() {
  LS_RETURN_IF_ERROR(agent_.Listen(spec_.run_dir + "/" + kAgentSocket));
  LS_RETURN_IF_ERROR(joining_.Listen(spec_.run_dir));
  LS_RETURN_IF_ERROR(restartable_.Listen(spec_.run_dir));
  // systemd-tmpfiles spares a directory that is locked: what we need of ours may be older than it lets files become.
  directory_ = Fd(open(spec_.run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  (void)flock(directory_.get(), LOCK_SH | LOCK_NB);
  sigset_t mask;
  sigemptyset(&mask);
  // A scheduler signals all processes of a job: of the others, none is to end us before the agent has heard its own.
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&mask, signal);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
  signals_ = Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  shared_memory_.Watch([this] { poller_.SetPeriod(kBusyTick); });
  poller_.Watch(signals_.get(), [this] {
    signalfd_siginfo info{};
    while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
      if (info.ssi_signo == SIGTERM) End();  // the rest is the agent's business
    }
    Reap();
  });
  return absl::OkStatus();
}

// Without it the job goes on as well, until a worker can't say what ended it.
void Starter::MakeErrorRooms() const {
  mkdir((spec_.run_dir + "/room").c_str(), 0700);
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    const absl::Status made = MakeErrorRoom(ErrorRoomPath(spec_.run_dir, rank));
    if (!made.ok()) Log(LogLevel::kWarning, "no room is kept for what ends rank {}: {}", rank, Message(made));
  }
}

void Starter::Run() {
  MakeErrorRooms();
  host_.Start();
  poller_.Run(kBusyTick, [this] { Tick(); });
}

// The agent.

void Starter::Obey(const Json& request, std::vector<Fd>& fds) {
  watched_ = true;
  poller_.SetPeriod(kBusyTick);
  const std::string op = request.value("op", "");
  const auto epoch = request.value("epoch", uint64_t{0});
  if (op == "seat") {
    Seat({request.value("node", 0), request.value("first_rank", 0), request.value("world_size", 1),
          request.value("nodes", 1)});
  } else if (op == "store") {
    store_.Host(epoch, request.value("restart_count", 0));
  } else if (op == "spawn") {
    BeginEpoch({.epoch = epoch,
                .restart_count = request.value("restart_count", 0),
                .store_host = request.value("store_host", ""),
                .store_port = request.value("store_port", 0),
                .agent_store = request.value("store_hosted", true),
                .version = request.value("version", 0),
                .code_root = request.value("code_root", ""),
                .code = request.value("code", ""),
                .environment = request.value("environment", Environment{})});
  } else if (op == "kill") {
    anew_ = request.value("anew", false);
    KillEpoch(epoch, Seconds{request.value("grace_s", 0.0)}, request.value("signal", SIGTERM),
              request.value("suspects", std::vector<int>{}));
  } else if (op == "signal") {
    workers_.Signal(request.value("signal", 0));
  } else if (op == "buffers") {
    if (auto taken = TakeBuffers(fds, request.value("slot_bytes", uint64_t{0})))
      buffers_.Take(request.value("rank", -1), *std::move(taken));
  } else if (op == "unheard_told") {
    agent_.ForgetUnheard();
  } else if (op == "end") {
    End();
  }
}

// A standby gets a place, or a node another one. No worker runs; those that wait have read the board of the old place.
void Starter::Seat(const control::Place& place) {
  workers_version_ = -1;
  spec_.place = place;
  buffers_.board()->first_rank = static_cast<uint32_t>(place.first_rank);
  buffers_.board()->world_size = static_cast<uint32_t>(place.world_size);
}

// Who only looked whether this process is there has watched nothing. Of a run that ends nobody asks how long it was
// unwatched.
void Starter::AgentLeft() {
  if (!std::exchange(watched_, false) || ending_) return;
  if (const absl::Status noted = NoteUnwatched(spec_.run_dir, clock_.Now()); !noted.ok())
    Log(LogLevel::kWarning, "since when nobody watches can't be noted: {}", Message(noted));
}

void Starter::TellDropped() {
  const DroppedOutput dropped{output_.dropped_bytes(), agent_.dropped_output()};
  if (dropped == told_ || agent_.queued()) return;  // an agent that hears nothing now would have to hear them all
  if (told_.log == 0 && dropped.log != 0) {
    Note(fmt::format("the log of a rank is full ({} MB) or can't be written: what does not fit is dropped and counted",
                     spec_.log_limit.value >> 20));
  }
  told_ = dropped;
  agent_.Tell({{"event", "dropped"}, {"log", told_.log}, {"console", told_.console}});
}

// How workers would start now; empty: that is not known yet.
std::string Starter::StartMethodNow() const {
  if (!host_.known()) return "";
  return host_.zygote_ok() ? "zygote" : "exec";
}

void Starter::TellStartMethod() {
  if (StartMethodNow() == told_start_method_ || agent_.queued()) return;
  told_start_method_ = StartMethodNow();
  agent_.Tell({{"event", "start_method"}, {"method", told_start_method_}});
}

Json Describe(const Worker& worker) {
  return {{"rank", worker.rank}, {"pid", worker.pid},       {"exited", worker.exited},
          {"code", worker.code}, {"signal", worker.signal}, {"at", worker.exited_at.value}};
}

void Starter::TellRing(size_t rank) {
  const Fd& ring = buffers_.rings()[rank];
  if (ring.valid()) agent_.Tell({{"event", "ring"}, {"rank", rank}}, {ring.get()});
}

void Starter::TellBuffers(size_t rank) {
  const RankBuffers& own = buffers_.ranks()[rank];
  if (own.slot_bytes == 0) return;
  agent_.Tell({{"event", "buffers"}, {"rank", rank}, {"slot_bytes", own.slot_bytes}}, own.descriptors());
}

// Descriptors in packets of their own: one takes those of some sixty ranks at most.
void Starter::SayHello() {
  for (size_t rank = 0; rank < buffers_.ranks().size(); ++rank) {
    TellRing(rank);
    TellBuffers(rank);
  }
  Json workers = Json::array();
  for (const Worker& worker : workers_.all()) workers.push_back(Describe(worker));
  agent_.Tell({{"event", "hello"},
               {"epoch", workers_.epoch()},
               {"restart_count", workers_restarts_},
               {"stopped", !plan_ && AllGone()},
               {"zygote", forked_},
               {"start_method", StartMethodNow()},
               {"workers", workers},
               {"dropped", {{"log", told_.log}, {"console", told_.console}}},
               {"unheard_since", agent_.unheard_since().value},
               {"starter_pid", getpid()}},
              {buffers_.board().fd()});
}

bool Starter::IsWorker(pid_t pid, int rank) const {
  const std::vector<Worker>& all = workers_.all();
  return std::any_of(all.begin(), all.end(), [&](const Worker& worker) {
    return worker.pid == pid && GlobalRank(spec_, worker.rank).value() == rank;
  });
}

void Starter::Joined(const ls_join_message& request) {
  const auto rank = static_cast<size_t>(request.rank - spec_.place.first_rank);
  request.kind == LS_JOIN_HELLO ? TellRing(rank) : TellBuffers(rank);
}

// An epoch begins.

void Starter::BeginEpoch(const EpochPlan& plan) {
  if (plan.epoch <= asked_epoch_) return TellItEnded(plan.epoch);
  if (plan_ && plan_->epoch == plan.epoch) return;  // asked again by an agent that took over: it is under way
  if (workers_.epoch() == plan.epoch) return TellSpawned();
  if (!AllGone() || killing_) return SpawnFailed(plan.epoch, "workers of the epoch before still run");
  plan_ = plan;
  exec_by_ = Nanos{};
  anew_ = false;
  workers_.Expect();
  shared_memory_.Begin();
  mkdir(EpochDir(spec_, plan.epoch).c_str(), 0700);
  __atomic_store_n(&buffers_.board()->epoch, plan.epoch, __ATOMIC_RELEASE);
  if (host_.known()) StartWorkers(*plan_);
}

// Who spawns it does not know that: whoever led before was killed before it was written down. Of one that had workers
// their exits tell.
void Starter::TellItEnded(uint64_t epoch) {
  if (epoch == workers_.epoch()) return;
  const std::string error = fmt::format("epoch {} was ended before its workers were started", epoch);
  agent_.Tell({{"event", "spawn_failed"}, {"epoch", epoch}, {"error", error}});
}

void Starter::StartWorkers(EpochPlan& plan) {
  plan.torch = host_.torch();
  const auto stdio = output_.Open(plan.restart_count);
  if (!stdio.ok()) return SpawnFailed(plan.epoch, Message(stdio.status()));
  KeepThoseThatWait(plan, *stdio);
  std::vector<int> ranks;
  for (int rank = 0; rank < spec_.ranks; ++rank)
    if (!kept_.contains(rank)) ranks.push_back(rank);
  if (ranks.empty()) return EpochRuns(plan.epoch, {});
  forked_ = host_.zygote_ok() && host_.Spawn(plan, ranks, *stdio);
  if (!forked_) SpawnByExec(EpochPlan(plan), ranks, *stdio);
}

void Starter::KeepThoseThatWait(const EpochPlan& plan, const std::vector<Stdio>& stdio) {
  kept_.clear();
  for (const Worker& worker : workers_.all()) {
    if (worker.exited) continue;
    if (plan.version != workers_version_) {  // it has the modules of the other
      KillTree(worker.pid);
      continue;
    }
    const absl::Status entered = restartable_.Enter(worker.pid, WorkerEnvironment(spec_, plan, worker.rank),
                                                    stdio[static_cast<size_t>(worker.rank)]);
    if (entered.ok()) kept_[worker.rank] = worker.pid;
    if (!entered.ok()) KillTree(worker.pid);
  }
}

void Starter::SpawnByExec(const EpochPlan& plan, const std::vector<int>& ranks, const std::vector<Stdio>& stdio) {
  std::vector<pid_t> pids;
  for (const int rank : ranks) {
    const Stdio& own = stdio[static_cast<size_t>(rank)];
    Environment environment = WorkerEnvironment(spec_, plan, rank);
    AddCollectors(spec_, environment);
    const auto pid =
        StartProcess(WorkerCommand(spec_, rank, plan.code), environment, spec_.cwd, own.out.get(), own.err.get(), -1);
    if (!pid.ok()) {
      for (const pid_t started : pids) kill(-started, SIGKILL);
      return SpawnFailed(plan.epoch, Message(pid.status()));
    }
    pids.push_back(*pid);
  }
  EpochRuns(plan.epoch, pids);
}

// pids: of the new ones, in the order of their ranks.
void Starter::EpochRuns(uint64_t epoch, const std::vector<pid_t>& pids) {
  if (plan_) workers_restarts_ = plan_->restart_count;
  if (plan_) workers_version_ = plan_->version;
  plan_.reset();
  std::vector<pid_t> all;
  auto next = pids.begin();
  for (int rank = 0; rank < spec_.ranks; ++rank) {
    const auto kept = kept_.find(rank);
    if (kept == kept_.end() && next == pids.end()) break;
    all.push_back(kept != kept_.end() ? kept->second : *next++);
  }
  const std::vector<Worker> dead = workers_.Begin(epoch, all, kept_);
  kept_.clear();
  TellSpawned();
  for (const Worker& worker : dead) TellExit(worker);
  if (killing_) KillEpoch(epoch, Seconds{0});  // asked for while they were being started
}

void Starter::TellSpawned() {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_.all()) pids.push_back(worker.pid);
  agent_.Tell({{"event", "spawned"}, {"epoch", workers_.epoch()}, {"pids", pids}, {"zygote", forked_}});
}

void Starter::SpawnFailed(uint64_t epoch, const std::string& error) {
  plan_.reset();
  for (const auto& [rank, pid] : std::exchange(kept_, {})) KillTree(pid);  // they are in an epoch that has not begun
  if (killing_) return StopIfAllGone();
  agent_.Tell({{"event", "spawn_failed"}, {"epoch", epoch}, {"error", error}});
}

void Starter::Unspawned(uint64_t epoch) {
  if (killing_) return SpawnFailed(epoch, "");
  exec_by_ = clock_.Now() + ToNanos(kLostZygoteEnds);
  StartByExec();
}

// Two workers of one rank would meet in the rendezvous store.
void Starter::StartByExec() {
  const bool some_are_left = !KillLeftOvers().empty() || host_.zygote_ends();
  if (some_are_left && clock_.Now() < exec_by_) return;  // SIGCHLD brings us back here
  exec_by_ = Nanos{};
  StartWorkers(*plan_);
}

// An epoch ends.

void Starter::KillEpoch(uint64_t epoch, Seconds grace, int signal, const std::vector<int>& suspects) {
  if (epoch < workers_.epoch() || (plan_ && epoch < plan_->epoch)) return;  // a stale order
  if (plan_ && plan_->epoch == epoch && !host_.spawning()) plan_.reset();   // not one process of it was started
  // Asked again by an agent that is back: the grace that was given runs already.
  if (killing_ && epoch == asked_epoch_ && grace.value > 0 && force_at_.value != 0) return;
  killing_ = true;
  asked_epoch_ = epoch;
  suspects_ = suspects;
  near_until_ = Nanos{};
  if (plan_) return;  // EpochRuns comes back here
  if (epoch != workers_.epoch()) return StopIfAllGone();
  shared_memory_.Collect();
  if (grace.value > 0) {
    AskToEnd(signal, grace);
  } else if (!ending_ && IsNear()) {
    near_until_ = clock_.Now() + ToNanos(PatienceForCheckpoint(*buffers_.board()));
    poller_.SetPeriod(kNearTick);
  } else {
    EndNow();
  }
  StopIfAllGone();
}

// Of Python the worker alone is asked: its script may want to save what it has, and the processes that load its data
// would be gone. A shell passes nothing on.
void Starter::AskToEnd(int signal, Seconds grace) {
  spec_.torchrun.no_python ? workers_.Signal(signal) : workers_.SignalAlone(signal);
  workers_.Signal(SIGCONT);  // a stopped worker hears it only then
  force_at_ = clock_.Now() + ToNanos(grace);
  grace_ = grace;
}

// A shell ends as soon as it is asked to; what it runs was asked too, and has the same grace.
bool Starter::LeftSomething(const Worker& worker) const {
  const bool grace = force_at_.value != 0 && grace_.value > 0;
  return grace && spec_.torchrun.no_python && worker.exited && HasGroup(worker);
}

bool Starter::IsNear() {
  std::set<int> gone(suspects_.begin(), suspects_.end());
  for (const Worker& worker : workers_.all()) {
    if (worker.exited) gone.insert(worker.rank);
  }
  return CheckpointIsNear(*buffers_.board(), gone);
}

void Starter::EndNow() {
  near_until_ = Nanos{};
  if (ending_ || anew_ || !Recall()) return ForceKill();
  force_at_ = clock_.Now() + ToNanos(kRecall);
  grace_ = {};
}

// Ranks that offer it leave their function, the others are killed. False: none offers it.
bool Starter::Recall() {
  // The fence, as in ForceKill; and who leaves must not say that its loop is finished.
  __atomic_store_n(&buffers_.board()->epoch, 0, __ATOMIC_RELEASE);
  std::set<int> recalled;
  for (const Worker& worker : workers_.all()) {
    const bool suspect = std::find(suspects_.begin(), suspects_.end(), worker.rank) != suspects_.end();
    if (!worker.exited && !suspect && restartable_.Recall(worker.pid)) recalled.insert(worker.rank);
  }
  if (recalled.empty()) return false;
  workers_.Kill([&](const Worker& worker) { return recalled.contains(worker.rank); });
  return true;
}

bool Starter::AllGone() const {
  const std::vector<Worker>& all = workers_.all();
  return std::all_of(all.begin(), all.end(), [this](const Worker& worker) { return IsGone(worker); });
}

// Of a stop that was asked for with a grace.
void Starter::TellDeaf() {
  if (grace_.value <= 0) return;
  std::string ranks;
  for (const Worker& worker : workers_.all()) {
    if (!worker.exited || LeftSomething(worker))
      ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", GlobalRank(spec_, worker.rank).value());
  }
  Note(
      fmt::format("still running {:.3g} s after they were asked to end, and killed now: rank {}", grace_.value, ranks));
}

void Starter::ForceKill() {
  force_at_ = Nanos{};
  __atomic_store_n(&buffers_.board()->epoch, 0, __ATOMIC_RELEASE);  // the fence: no slot becomes DONE from here on
  workers_.Kill([this](const Worker& worker) { return IsGone(worker); });
}

void Starter::Reap() {
  int status = 0;
  for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
    if (host_.Owns(pid)) {
      host_.Reaped(pid);
      continue;
    }
    if (feeds_.Owns(pid)) {
      feeds_.Reaped(pid, status);
      continue;
    }
    if (const auto worker = workers_.Reaped(pid, status, clock_.Now())) TellExit(*worker);
  }
  if (killing_) StopIfAllGone();
  if (plan_ && exec_by_.value != 0) StartByExec();
}

void Starter::TellExit(const Worker& worker) {
  Json event = Describe(worker);
  event["event"] = "exited";
  event["epoch"] = workers_.epoch();
  agent_.Tell(event);
}

// Children that are neither workers nor our helpers: orphans of the epoch.
std::vector<pid_t> Starter::KillLeftOvers() const {
  std::vector<pid_t> left;
  for (const pid_t pid : Children(getpid())) {
    if (!host_.Owns(pid) && !feeds_.Owns(pid) && !restartable_.Waits(pid)) left.push_back(pid);
  }
  for (const pid_t pid : left) KillTree(pid);
  return left;
}

void Starter::StopIfAllGone() {
  const std::vector<Worker>& all = workers_.all();
  if (!AllGone() || std::ranges::any_of(all, [this](const Worker& worker) { return LeftSomething(worker); })) return;
  near_until_ = force_at_ = Nanos{};
  if (!KillLeftOvers().empty()) return;  // SIGCHLD brings us back here
  killing_ = false;
  __atomic_store_n(&buffers_.board()->epoch, 0, __ATOMIC_RELEASE);
  shared_memory_.Remove();
  output_.Drain([this, &all](int rank) {  // a process that goes on may have children, which write on
    const auto index = static_cast<size_t>(rank);
    return index < all.size() && !all[index].exited && IsGone(all[index]);
  });
  agent_.TellAfterOutput({{"event", "stopped"}, {"epoch", std::max(workers_.epoch(), asked_epoch_)}});
  if (ending_) poller_.Stop();
}

void Starter::End() {
  if (!std::exchange(ending_, true)) leave_at_ = clock_.Now() + ToNanos(kStuckEnd);
  KillEpoch(plan_ ? plan_->epoch : workers_.epoch(), Seconds{0});
}

// They go when the kernel lets them.
void Starter::LeaveTheStuck() {
  std::set<pid_t> left;
  for (const Worker& worker : workers_.all())
    if (!worker.exited) left.insert(worker.pid);
  for (const pid_t pid : KillLeftOvers()) left.insert(pid);
  shared_memory_.Remove();
  Note(
      fmt::format("killed, and not ended since: process {}; each ends when the kernel lets it", fmt::join(left, ", ")));
  poller_.Stop();
}

void Starter::Tick() {
  agent_.Flush();
  feeds_.Tick();
  host_.Tick();
  TellDropped();
  TellStartMethod();
  const Nanos now = clock_.Now();
  shared_memory_.Tick();
  if (force_at_.value != 0 && now >= force_at_) {
    TellDeaf();
    ForceKill();
  }
  if (killing_ || exec_by_.value != 0) Reap();
  if (ending_ && !plan_ && now >= leave_at_) return LeaveTheStuck();
  if (near_until_.value != 0) {
    if (now < near_until_ && IsNear()) return poller_.SetPeriod(kNearTick);
    EndNow();
  }
  const bool idle = !agent_.queued() && !killing_ && !plan_ && !shared_memory_.pending() && agent_.connected();
  poller_.SetPeriod(idle ? kIdleTick : kBusyTick);
  if (!ending_ && agent_.Missed() > ToNanos(spec_.adoption)) {
    Log(LogLevel::kError, "no agent for {} s: ending the job", spec_.adoption.value);
    End();
  }
}

// One byte into the pipe that our launcher left us: connecting works from now on.
void SayReady() {
  const char* number = std::getenv(kReadyVariable);
  if (number == nullptr) return;
  const Fd ready(std::atoi(number));
  [[maybe_unused]] const ssize_t wrote = write(ready.get(), "R", 1);
  unsetenv(kReadyVariable);
}

}  // namespace

int StarterMain(const std::string& run_dir) {
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto spec = ReadRunSpec(run_dir);
  if (!spec.ok()) {
    Log(LogLevel::kError, "{}", Message(spec.status()));
    return 2;
  }
  AllowOpenFiles(OpenFilesFor(spec->ranks));
  auto board = BoardMap::Create(spec->ranks, spec->place.first_rank, spec->place.world_size);
  if (!board.ok()) {
    Log(LogLevel::kError, "{}", Message(board.status()));
    return 1;
  }
  Starter starter(*std::move(spec), *std::move(board));
  if (const absl::Status status = starter.Listen(); !status.ok()) {
    Log(LogLevel::kError, "{}", Message(status));
    return 1;
  }
  if (const absl::Status status = starter.StartFeeds(); !status.ok()) {
    fmt::print(stderr, "{}\n", Message(status));  // our launcher tells it to the user
    return 1;
  }
  SayReady();
  starter.Run();
  return 0;
}

}  // namespace lockstep::agent
