#include "lockstep/node/run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/agent/agent.h"
#include "lockstep/agent/python.h"
#include "lockstep/base/log.h"
#include "lockstep/control/coordinator.h"
#include "lockstep/control/report.h"
#include "lockstep/incident/fields.h"
#include "lockstep/node/console.h"
#include "lockstep/node/failure.h"
#include "lockstep/node/install.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/node/view.h"
#include "lockstep/serve/server.h"
#include "lockstep/serve/webhook.h"
#include "lockstep/store/journal.h"

namespace lockstep::node {
namespace {

namespace fs = std::filesystem;

constexpr Seconds kTick{0.1};
constexpr int kTicksPerPublish = 3;  // about 3 Hz: the live view, /metrics and /api

bool IsIgnored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

bool HasTerminal() { return Fd(open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)).valid(); }

// SIGHUP and SIGPIPE even if they don't end the job: the terminal went away, training goes on, the logs hold the
// output.
sigset_t HandledSignals(const RunOptions& options) {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGHUP, SIGTSTP, SIGPIPE}) sigaddset(&mask, signal);
  for (const int signal : options.stop_signals) sigaddset(&mask, signal);
  return mask;
}

// Before the first thread starts: threads inherit the mask, and one that does not block these would die of them.
void BlockHandledSignals(const RunOptions& options) {
  const sigset_t mask = HandledSignals(options);
  sigprocmask(SIG_BLOCK, &mask, nullptr);
}

class Node {
 public:
  Node(agent::RunSpec spec, RunOptions options);
  absl::Status Begin();
  absl::Status Resume();
  int Run();

 private:
  absl::Status Open();
  void Handle(const control::EventBody& body);
  void Remember(const control::RankExited& exited);
  void Carry(const std::vector<control::Command>& commands);
  void Do(const control::Announce& command);
  void Do(const control::Finish& command);
  void Reconcile();
  void StarterLost();
  void EndWithoutStarter();
  void Settle(const control::Finish& command);
  void HearSignals();
  void Suspend();
  void Answer(const Json& request, const ControlSocket::Reply& reply);
  Json Rehearse(const Json& request);
  Json Status();
  Json Incidents() { return control::IncidentsReport(coordinator_->state(), clock_.Now()); }
  void Tick();
  void Publish();

  RunOptions options_;
  SystemClock clock_;
  Poller poller_;
  View view_;
  std::unique_ptr<store::Journal> journal_;
  std::unique_ptr<control::Coordinator> coordinator_;
  std::vector<control::Command> owed_;  // carried out once the starter said hello
  agent::Agent agent_;
  Console console_;
  FirstFailure first_failure_;
  ControlSocket control_socket_;
  std::unique_ptr<serve::Server> server_;
  std::unique_ptr<serve::Webhook> webhook_;
  Fd signals_;
  std::optional<int> exit_code_;
  const bool had_terminal_ = HasTerminal();  // one that goes away takes nothing with it; a SIGHUP by kill(1) does
  bool ready_ = false, finishing_ = false, starter_lost_ = false;
  int ticks_ = 0;
};

Node::Node(agent::RunSpec spec, RunOptions options)
    : options_(std::move(options)),
      view_(options_.live_view),
      agent_(std::move(spec), options_.policy, poller_, clock_,
             {.event = [this](const control::EventBody& body) { Handle(body); },
              .output = [this](int rank, int stream, std::string_view data) { console_.Output(rank, stream, data); },
              .note = [this](const std::string& text) { view_.Line(text); },
              .ready = [this] { Reconcile(); },
              .lost = [this] { StarterLost(); },
              .state = [this]() -> const control::State& { return coordinator_->state(); }}),
      console_(agent_.spec().torchrun, view_),
      control_socket_(poller_,
                      [this](const Json& request, const ControlSocket::Reply& reply) { Answer(request, reply); }) {}

absl::Status Node::Open() {
  const std::string& run_dir = agent_.spec().run_dir;
  LS_ASSIGN_OR_RETURN(journal_,
                      store::OpenSqliteJournal(run_dir + "/" + agent::kJournalFile, store::JournalMode::kWrite));
  LS_RETURN_IF_ERROR(control_socket_.Listen(run_dir));
  if (options_.metrics_port >= 0) {
    serve::ServerOptions server_options;
    server_options.host = options_.metrics_host;
    server_options.port = options_.metrics_port;
    if (!options_.token_file.empty()) {
      LS_ASSIGN_OR_RETURN(server_options.token, ReadFile(options_.token_file));
    }
    LS_ASSIGN_OR_RETURN(server_, serve::Server::Start(server_options));
    view_.Line(fmt::format("metrics on http://{}:{}/metrics", options_.metrics_host, server_->port()));
  }
  if (!options_.webhook.empty()) {
    LS_ASSIGN_OR_RETURN(webhook_, serve::Webhook::Start({.url = options_.webhook}));
  }
  const sigset_t mask = HandledSignals(options_);
  signals_ = Fd(signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  poller_.Watch(signals_.get(), [this] { HearSignals(); });
  return absl::OkStatus();
}

absl::Status Node::Begin() {
  LS_RETURN_IF_ERROR(Open());
  for (const std::string& notice : options_.notices) view_.Line(notice);
  if (agent_.spec().ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    view_.Line(
        "OMP_NUM_THREADS is not set: it is 1 for every rank, so that they don't crowd each other; set it to tune");
  if (!options_.torchrun.log_dir.empty())
    view_.Line(fmt::format("logs and error files are in {}", agent_.spec().torchrun.log_dir));
  coordinator_ = std::make_unique<control::Coordinator>(*journal_, clock_);
  control::JobSpec job;
  job.name = agent_.spec().job;
  job.ranks = agent_.spec().ranks;
  job.max_restarts = agent_.spec().max_restarts;
  job.restarts_without_steps = options_.max_restarts.has_value();
  job.no_progress_limit = options_.no_progress_limit;
  job.observe_only = options_.observe_only;
  job.grace = options_.grace;
  LS_RETURN_IF_ERROR(agent_.OpenDisk());
  if (!agent_.spec().checkpoint_dir.empty()) {
    LS_ASSIGN_OR_RETURN(const uint64_t first_epoch, agent::FirstEpoch(agent_.spec()));
    job.first_epoch = EpochId(first_epoch);
    job.load_first = first_epoch > 1;
  }
  LS_ASSIGN_OR_RETURN(owed_, coordinator_->Handle(control::JobStarted{job}));
  return agent_.Launch();
}

absl::Status Node::Resume() {
  LS_RETURN_IF_ERROR(Open());
  LS_ASSIGN_OR_RETURN(control::Coordinator::Resumed resumed, control::Coordinator::Resume(*journal_, clock_));
  coordinator_ = std::move(resumed.coordinator);
  if (coordinator_->state().mode == control::Mode::kFinished) {
    return FailedPrecondition("{}: this run has ended: {}", agent_.spec().run_dir, coordinator_->state().verdict);
  }
  owed_ = std::move(resumed.commands);
  if (const absl::Status opened = agent_.OpenDisk(); !opened.ok())
    view_.Line(fmt::format("no checkpoints go to disk: {}", Message(opened)));
  const absl::Status adopted = agent_.Adopt();
  if (!adopted.ok()) return FailedPrecondition("nothing to adopt in {}: {}", agent_.spec().run_dir, Message(adopted));
  view_.Line(fmt::format("adopted the workers of epoch {}, which ran on", coordinator_->state().epoch.value()));
  return absl::OkStatus();
}

void Node::Reconcile() {
  ready_ = true;
  Carry(std::exchange(owed_, {}));
}

void Node::StarterLost() {
  starter_lost_ = true;
  if (exit_code_) return poller_.Stop();
  if (!finishing_) EndWithoutStarter();
}

// Nobody can say any more how the workers end: the agent has killed them, and the journal says that the run is over.
void Node::EndWithoutStarter() {
  view_.Line(
      "the starter process was killed, and with it went the exit statuses and the checkpoints: the job can't go on");
  Handle(control::StopAsked{SIGKILL});
  Handle(control::EpochStopped{coordinator_->state().epoch});
}

// Exits that come after our own kill tell nothing.
void Node::Remember(const control::RankExited& exited) {
  const control::State& state = coordinator_->state();
  const bool killed = state.mode == control::Mode::kStopping || state.mode == control::Mode::kFinishing;
  if (killed || exited.epoch != state.epoch) return;
  const std::vector<control::RankStatus> ranks = agent_.Observe().ranks;
  const auto own = std::find_if(ranks.begin(), ranks.end(), [&](const auto& one) { return one.rank == exited.rank; });
  first_failure_.Add(exited, own != ranks.end() ? own->pid : 0, state.restarts, clock_.Now(), clock_.WallNow());
}

void Node::Handle(const control::EventBody& body) {
  if (const auto* exited = std::get_if<control::RankExited>(&body)) Remember(*exited);
  auto commands = coordinator_->Handle(body);
  if (commands.ok()) Carry(*commands);
}

void Node::Carry(const std::vector<control::Command>& commands) {
  for (const control::Command& command : commands) {
    agent_.Execute(command);
    if (const auto* announce = std::get_if<control::Announce>(&command)) Do(*announce);
    if (const auto* finish = std::get_if<control::Finish>(&command)) Do(*finish);
  }
}

void Node::Do(const control::Announce& command) {
  const incident::Incident& incident = command.incident;
  std::string line = fmt::format("incident {}: {}", incident.id, incident::Headline(incident));
  if (!incident.actions.empty())
    line += fmt::format("; {}{}", incident.actions.back().done ? "" : "would be: ", incident.actions.back().text);
  if (incident.closed.value != 0) line += " (closed)";
  view_.Line(line);
  if (webhook_) webhook_->Post(incident::ToJson(incident));
}

void Node::Do(const control::Finish& command) {
  finishing_ = true;
  agent_.FlushLast([this, command] { Settle(command); });
}

void Node::Settle(const control::Finish& command) {
  exit_code_ = command.exit_code;
  console_.Flush();
  view_.Paint(Status(), Incidents());
  view_.Settle();
  const std::string table = first_failure_.Table(agent_.spec(), coordinator_->state().epoch);
  if (command.exit_code != 0 && !table.empty()) view_.Line("the first failure\n" + table);
  view_.Line(command.verdict);
  starter_lost_ ? poller_.Stop() : agent_.End();
}

void Node::HearSignals() {
  signalfd_siginfo info{};
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const auto signal = static_cast<int>(info.ssi_signo);
    const auto& ends = options_.stop_signals;
    const bool asked = std::find(ends.begin(), ends.end(), signal) != ends.end();
    if (asked && !(signal == SIGHUP && (IsIgnored(SIGHUP) || (had_terminal_ && !HasTerminal())))) {
      finishing_ ? agent_.GiveUpFlush() : Handle(control::StopAsked{signal});
    } else if (signal == SIGTSTP) {
      Suspend();
    }
  }
}

// Ctrl-Z pauses the whole job, and `fg` continues it. The workers have sessions of their own, so we pass it on.
void Node::Suspend() {
  agent_.SignalWorkers(SIGSTOP);
  Handle(control::JobPaused{});
  kill(getpid(), SIGSTOP);
  agent_.SignalWorkers(SIGCONT);
  agent_.WasAway();
  Handle(control::JobContinued{});
}

Json Node::Status() {
  Json status = control::StatusReport(coordinator_->state(), agent_.Observe(), clock_.Now());
  status["journal_errors"] = coordinator_->journal_errors();
  if (webhook_) status["webhook"] = serve::ToJson(webhook_->counts());
  return status;
}

void Node::Answer(const Json& request, const ControlSocket::Reply& reply) {
  incident::Fields fields(request, "request");
  const std::string op = fields.Text("op");
  if (op == "status") return reply(Status());
  if (op == "incidents") return reply(Incidents());
  if (op == "drill") return reply(Rehearse(request));
  if (op == "stacks") {
    return agent_.ReadStacks(RankId(fields.Int32("rank")),
                             [reply](const std::string& text) { reply({{"stacks", text}}); });
  }
  if (op == "stop") {
    Handle(control::StopAsked{SIGTERM});
    return reply({{"ok", true}});
  }
  reply({{"error", "unknown request " + op}});
}

// `lockstep drill` is about to break something: written down first, so that nobody takes it for a real fault.
Json Node::Rehearse(const Json& request) {
  if (!agent_.spec().allow_drill)
    return {{"error", "this run takes no drills: it was started without `lockstep run --allow-drill`"}};
  incident::Fields fields(request, "drill");
  const control::Drilled drill{EpochId(fields.Unsigned("epoch")), fields.Text("fault"), fields.Int32("rank")};
  if (!fields.status().ok()) return {{"error", Message(fields.status())}};
  if (drill.epoch != coordinator_->state().epoch)
    return {{"error", fmt::format("epoch {} is over: the job is being restarted", drill.epoch.value())}};
  view_.Line(drill.rank < 0 ? fmt::format("drill: {}", drill.fault)
                            : fmt::format("drill: {} of rank {}", drill.fault, drill.rank));
  Handle(drill);
  return {{"epoch", drill.epoch.value()}, {"step", coordinator_->state().progress.step}, {"watcher_pid", getpid()}};
}

void Node::Tick() {
  if (ready_ && !exit_code_) agent_.Tick();
  if (++ticks_ % kTicksPerPublish == 0) Publish();
}

void Node::Publish() {
  if (exit_code_) return;
  const Json status = Status(), incidents = Incidents();
  view_.Paint(status, incidents);
  if (server_) server_->Publish(status, incidents);
}

int Node::Run() {
  poller_.Run(kTick, [this] { Tick(); });
  if (webhook_ && !webhook_->Drain(Seconds{2})) view_.Line("some incidents did not reach the webhook");
  return exit_code_.value_or(1);
}

absl::Status CheckProgram(const std::string& name) {
  if (agent::FindProgram(name)) return absl::OkStatus();
  const bool is_path = name.find('/') != std::string::npos;
  return NotFound("--no-python: {} is not {}", name,
                  is_path ? "an executable file" : "a program on PATH; a file here is ./" + name);
}

// <--log-dir>/<run id>_<random>, as torchrun names it; without --log-dir, files that --redirects or --tee ask for lie
// in the run directory.
absl::StatusOr<std::string> MakeLogDir(const agent::RunSpec& spec) {
  const agent::Torchrun& torchrun = spec.torchrun;
  if (torchrun.log_dir.empty()) return torchrun.streams.empty() ? "" : spec.run_dir + "/logs";
  std::error_code error;
  const std::string base = fs::absolute(torchrun.log_dir).lexically_normal().string();
  fs::create_directories(base, error);
  std::string path = fmt::format("{}/{}_XXXXXX", base,
                                 fs::path(torchrun.run_id.empty() ? spec.job : torchrun.run_id).filename().string());
  if (error || mkdtemp(path.data()) == nullptr)
    return Errno(error ? error.value() : errno, "--log-dir {}: making a folder for this run", base);
  return path;
}

absl::Status CheckScript(const RunOptions& options) {
  if (options.command.empty())
    return InvalidArgument("no script to run; usage: lockstep run [options] SCRIPT [ARGS...]");
  if (options.module) return absl::OkStatus();
  const std::string& script = options.command.front();
  if (options.torchrun.no_python) return CheckProgram(script);
  if (!fs::exists(script))
    return NotFound("script {} does not exist (looked in {})", script, fs::current_path().string());
  if (fs::is_directory(script)) return InvalidArgument("{} is a directory; name a script, or a module with -m", script);
  if (access(script.c_str(), R_OK) != 0)
    return MakeError(absl::StatusCode::kPermissionDenied, fmt::format("script {} is not readable", script));
  return absl::OkStatus();
}

absl::StatusOr<agent::RunSpec> MakeSpec(const RunOptions& options) {
  LS_RETURN_IF_ERROR(CheckScript(options));
  if (options.ranks < 1) return InvalidArgument("--nproc-per-node must be at least 1, found {}", options.ranks);
  agent::RunSpec spec;
  const absl::StatusOr<agent::PythonChoice> python = agent::FindPython(options.python);
  if (!python.ok() && !options.torchrun.no_python) return python.status();
  if (python.ok()) spec.python = python->path;  // else only the store would have needed it: rank 0 hosts it
  if (python.ok()) spec.python_from = python->from;
  LS_ASSIGN_OR_RETURN(const Installation installation, FindInstallation());
  spec.package_dir = installation.package_dir;
  spec.client_lib = installation.client_lib;
  spec.job = !options.job.empty() ? options.job
                                  : fmt::format("{}-{}", fs::path(options.command.front()).stem().string(), getpid());
  spec.cwd = fs::current_path().string();
  spec.command = options.command;
  spec.module = options.module;
  spec.ranks = options.ranks;
  spec.start_method = options.start_method;
  spec.torchrun = options.torchrun;
  spec.checkpoint_budget = options.checkpoint_budget;
  spec.max_restarts = options.max_restarts.value_or(spec.max_restarts);
  spec.allow_drill = options.allow_drill;
  if (!options.checkpoint_dir.empty())
    spec.checkpoint_dir = fs::absolute(options.checkpoint_dir).lexically_normal().string();
  spec.checkpoint_interval = options.checkpoint_interval;
  spec.checkpoint_keep = options.checkpoint_keep;
  spec.checkpoint_flush_limit = options.checkpoint_flush_limit;
  LS_ASSIGN_OR_RETURN(spec.run_dir, MakeRunDir(options.run_dir, spec.job));
  LS_ASSIGN_OR_RETURN(spec.torchrun.log_dir, MakeLogDir(spec));
  LS_RETURN_IF_ERROR(WriteFileAtomically(spec.run_dir + "/run.json", RenderJson(ToJson(spec))));
  return spec;
}

}  // namespace

absl::StatusOr<int> RunJob(const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, MakeSpec(options));
  BlockHandledSignals(options);
  Node node(std::move(spec), options);
  LS_RETURN_IF_ERROR(node.Begin());
  return node.Run();
}

absl::StatusOr<int> ResumeJob(const std::string& run_dir, const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::string found, FindRunDir(run_dir));
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, agent::ReadRunSpec(found));
  if (options.ranks > 1 && options.ranks != spec.ranks) {
    return InvalidArgument(
        "{} holds a run of {} ranks, --nproc-per-node says {}; leave the option out to go on with it", found,
        spec.ranks, options.ranks);
  }
  BlockHandledSignals(options);
  Node node(std::move(spec), options);
  LS_RETURN_IF_ERROR(node.Resume());
  return node.Run();
}

}  // namespace lockstep::node
