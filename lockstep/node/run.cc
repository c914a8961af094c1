#include "lockstep/node/run.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "lockstep/agent/agent.h"
#include "lockstep/agent/asked_to_stop.h"
#include "lockstep/agent/code_copy.h"
#include "lockstep/agent/wire.h"
#include "lockstep/base/clean.h"
#include "lockstep/incident/fields.h"
#include "lockstep/node/console.h"
#include "lockstep/node/endpoint.h"
#include "lockstep/node/failure.h"
#include "lockstep/node/kept_options.h"
#include "lockstep/node/lead.h"
#include "lockstep/node/past.h"
#include "lockstep/node/query.h"
#include "lockstep/node/run_dir.h"
#include "lockstep/node/run_spec.h"
#include "lockstep/node/signals.h"
#include "lockstep/node/update.h"
#include "lockstep/node/view.h"
#include "lockstep/rpc/client.h"
#include "lockstep/store/writer_lock.h"

namespace lockstep::node {
namespace {

constexpr Seconds kTick{0.1}, kSteadyTick{0.2};  // each tick takes a core away from a rank for a moment
constexpr Seconds kPublish{0.3};                 // the live view, /metrics and /api
constexpr Seconds kFarewell{5};                  // for the other nodes to hear that the job is over

// Before anybody hears the signals that end a run. False: it is to end.
bool PauseUnlessStopped(Seconds seconds) {
  for (int tenths = static_cast<int>(10 * seconds.value); tenths > 0 && !agent::IsAskedToStop(); --tenths)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return !agent::IsAskedToStop();
}

class Node {
 public:
  Node(agent::RunSpec spec, RunOptions options);
  absl::Status Begin();
  absl::Status Resume();
  absl::StatusOr<int> Run();
  bool HoldsRunDir() const { return lock_.has_value(); }
  bool launched() const { return launched_; }  // its starter: it had a part in the job

 private:
  absl::Status Lock();
  absl::Status Open();
  absl::Status CheckStarter() const;
  absl::Status NothingToAdopt(const absl::Status& why) const;
  absl::Status BeginAlone();
  absl::Status BeginLeading();
  void Follow(const std::string& address);
  void MeetStranger(const std::string& why);
  void MakeAgent(const control::Place& place);
  absl::Status Placed(const control::Place& place);
  void Welcomed(const control::Place& place, const std::string& run);
  void TakeSeat(const control::Place& place);
  void Move(const control::Place& place);
  void KeepPlace();
  void Fail(const absl::Status& status);

  // The agent's words to the coordinator and back, wherever that is.
  void Say(const control::Said& said);
  void Told(const control::Told& told);
  void Remember(const control::RankExited& exited);
  std::vector<RankId> Blamed() const;
  void Finish(const control::Finish& command);
  void Settle(const control::Finish& command);
  void StarterLost();

  void AskStop(int signal);
  void Suspend();
  void Answer(const Json& request, const ControlSocket::Reply& reply);
  Json Rehearse(const Json& request);
  bool IsLeading() const { return lead_ && lead_->begun(); }
  Json Status();
  Json Incidents() { return IsLeading() ? lead_->head().Incidents() : Json::array(); }
  control::JobSpec Job() const;
  control::Join OwnJoin() const;
  void Tick();
  void TickFollowing();
  std::string Meanwhile() const;
  Seconds Patience() const;
  void EndIfAllHeard();
  void Publish();

  RunOptions options_;
  // What this watcher was started with, and its newest place. The agent's copy may lag: after Move() it keeps the old
  // place until the coming epoch's checkpoint is chosen. What is saved is agent_->spec().
  agent::RunSpec spec_;
  SystemClock clock_;
  Poller poller_;
  View view_;
  std::unique_ptr<Lead> lead_;  // one of these two
  std::unique_ptr<rpc::Client> link_;
  std::unique_ptr<agent::Agent> agent_;  // once our place in the job is known
  Console console_;
  FirstFailure first_failure_;
  ControlSocket control_socket_;
  std::optional<Signals> signals_;
  std::optional<store::WriterLock> lock_;  // one watcher at a time: two agents would fight over the workers
  std::optional<int> exit_code_;
  absl::Status failure_;  // the job could not begin
  std::string stranger_;  // what the newest coordinator of another run said
  bool launched_ = false, finishing_ = false, starter_lost_ = false, adopting_ = false, waiting_told_ = false;
  Nanos begun_, ended_, published_, stepped_;
  uint64_t first_epoch_ = 1;  // of a run that begins with the checkpoints in our directory
};

Node::Node(agent::RunSpec spec, RunOptions options)
    : options_(std::move(options)),
      spec_(std::move(spec)),
      view_(options_.live_view),
      console_(spec_, view_),
      control_socket_(poller_,
                      [this](const Json& request, const ControlSocket::Reply& reply) { Answer(request, reply); }),
      begun_(clock_.Now()) {
  options_.run_dir = spec_.run_dir;
}

// ---- beginning ----

absl::Status Node::Open() {
  LS_RETURN_IF_ERROR(control_socket_.Listen(spec_.run_dir));
  signals_.emplace(
      poller_, options_.stop_signals, [this](int signal) { finishing_ ? agent_->GiveUpFlush() : AskStop(signal); },
      [this] { Suspend(); });
  return absl::OkStatus();
}

absl::Status Node::BeginLeading() {
  lead_ = std::make_unique<Lead>(options_, poller_, clock_,
                                 Lead::Listener{.line = [this](const std::string& text) { view_.Line(text); },
                                                .placed = [this](const control::Place& place) { return Placed(place); },
                                                .told = [this](const control::Told& told) { Told(told); },
                                                .moved =
                                                    [this](const control::Place& place) {
                                                      Move(place);
                                                      agent_->SayAll();
                                                    },
                                                .failed = [this](const absl::Status& status) { Fail(status); }});
  LS_RETURN_IF_ERROR(lead_->Open());
  return lead_->KeepIn(spec_.run_dir);
}

void Node::Follow(const std::string& address) {
  spec_.coordinator = address;
  if (options_.metrics_port >= 0)
    view_.Line(fmt::format("--metrics-port serves nothing here: {}", AskElsewhere(address)));
  link_ = std::make_unique<rpc::Client>(
      SplitEndpoints(address), OwnJoin(), poller_, clock_,
      rpc::Client::Listener{
          .welcomed = [this](const control::Place& place, const std::string& run) { Welcomed(place, run); },
          // With an agent it was part of the job: its place has been given away.
          .refused =
              [this](const std::string& why) { Fail(agent_ ? Unavailable("{}", why) : FailedPrecondition("{}", why)); },
          .told = [this](const control::Told& told) { Told(told); },
          .lost =
              [this](const std::string& why) {
                view_.Line(
                    fmt::format("the coordinator at {} is out of reach ({}): {}", link_->address(), why, Meanwhile()));
              },
          .leads_another = [this](const std::string& why) { MeetStranger(why); }});
}

// Its address is ours by mistake, or was given anew while our coordinator is away.
void Node::MeetStranger(const std::string& why) {
  if (std::exchange(stranger_, why) == why) return;
  view_.Line(fmt::format("{} ({}): our coordinator is looked for further; {}", why, link_->address(), Meanwhile()));
}

control::Join Node::OwnJoin() const {
  control::Join join;
  join.name = spec_.node_name;
  join.token = spec_.node_token;
  join.node_rank = options_.nodes.own_rank;
  join.ranks = spec_.ranks;
  join.least_nodes = options_.nodes.least;
  join.most_nodes = options_.nodes.most;
  join.keeps_on_disk = !spec_.checkpoint_dir.empty();
  join.first_epoch = first_epoch_;
  join.rdzv_id = spec_.torchrun.run_id;
  join.layout = spec_.layout;
  join.job = spec_.job;
  join.entry = agent::EntryOf(spec_);
  return join;
}

control::JobSpec Node::Job() const {
  control::JobSpec job = MakeJob(options_);
  job.name = spec_.job;
  return job;
}

void Node::MakeAgent(const control::Place& place) {
  spec_.place = place;
  agent_ = std::make_unique<agent::Agent>(
      spec_, options_.inspections, poller_, clock_,
      agent::Agent::Listener{
          .say = [this](const control::Said& said) { Say(said); },
          .output = [this](int rank, int stream, std::string_view data) { console_.Output(rank, stream, data); },
          .left_out = [this] { return view_.dropped(); },
          .note = [this](const std::string& text) { view_.Line(text); },
          .lost = [this] { StarterLost(); },
          .moved = [this] { KeepPlace(); }});
}

absl::Status Node::BeginAlone() {
  LS_RETURN_IF_ERROR(BeginLeading());
  lead_->Await(Job(), spec_.run_token);
  LS_RETURN_IF_ERROR(lead_->Attend(OwnJoin()));
  return failure_;
}

absl::Status Node::Lock() {
  LS_ASSIGN_OR_RETURN(lock_, store::WriterLock::Take(spec_.run_dir + "/" + agent::kWatcherLock));
  return absl::OkStatus();
}

absl::Status Node::Begin() {
  LS_RETURN_IF_ERROR(Lock());
  LS_RETURN_IF_ERROR(agent::BringBack(
      spec_, !options_.nodes.several(), clock_, [this](const std::string& text) { view_.Line(text); },
      [] { return !agent::IsAskedToStop(); }));
  LS_RETURN_IF_ERROR(Open());
  for (const std::string& notice : options_.notices) view_.Line(notice);
  if (!spec_.checkpoint_dir.empty()) {
    const auto note = [this](const std::string& text) { view_.Line(text); };
    LS_ASSIGN_OR_RETURN(first_epoch_, agent::FirstEpoch(spec_, agent::UntilItPassed(clock_, note, PauseUnlessStopped)));
  }
  if (spec_.ranks > 1 && std::getenv("OMP_NUM_THREADS") == nullptr)
    view_.Line(
        "OMP_NUM_THREADS is not set: it is 1 for every rank, so that they don't crowd each other; set it to tune");
  if (options_.nccl_profiler && spec_.nccl_lib.empty())
    view_.Line(fmt::format("NCCL_PROFILER_PLUGIN is {} already, and NCCL loads one profiler: Lockstep's stays out",
                           std::getenv("NCCL_PROFILER_PLUGIN")));
  if (!options_.torchrun.log_dir.empty())
    view_.Line(fmt::format("logs and error files are in {}", spec_.torchrun.log_dir));
  const Nodes& nodes = options_.nodes;
  if (nodes.endpoint.empty()) return BeginAlone();
  if (nodes.may_lead) {
    absl::Status leading = BeginLeading();
    if (leading.ok()) {
      spec_.endpoint = nodes.endpoint;
      lead_->Await(Job(), spec_.run_token);
      LS_RETURN_IF_ERROR(lead_->Attend(OwnJoin()));
      return failure_;
    }
    // Of several nodes on one machine, the first has the port; the others attend it.
    lead_.reset();
    if (nodes.must_lead || !absl::IsUnavailable(leading)) return leading;
  }
  Follow(nodes.endpoint);
  return absl::OkStatus();
}

// All nodes are there: our part begins.
absl::Status Node::Placed(const control::Place& place) {
  const std::string& endpoint = options_.nodes.endpoint;
  spec_.address = spec_.torchrun.master_addr;  // of several nodes: --local-addr
  if (endpoint.empty() || spec_.address.empty()) {
    LS_ASSIGN_OR_RETURN(spec_.address, OwnAddress(endpoint, lead_ != nullptr));
  }
  if (spec_.torchrun.master_addr.empty()) spec_.torchrun.master_addr = spec_.address;
  if (!agent_) MakeAgent(place);
  LS_RETURN_IF_ERROR(agent_->OpenDisk());
  // Whoever stands by joins a job that goes on, whatever there is.
  const bool begins = place.node != control::kStandby;
  if (!spec_.checkpoint_dir.empty() && begins) LS_RETURN_IF_ERROR(agent::CheckNewest(spec_));
  LS_RETURN_IF_ERROR(KeepSpec(spec_));
  LS_RETURN_IF_ERROR(agent_->Launch());
  launched_ = true;
  return absl::OkStatus();
}

void Node::Welcomed(const control::Place& place, const std::string& run) {
  adopting_ = false;
  const bool waits = place.node == control::kStandby;
  if (agent_ && waits && spec_.place.node != control::kStandby)
    return Fail(
        Unavailable("whoever leads knows nothing of this node's place: its journal has lost it; start it again"));
  const bool moves = agent_ && !waits && !(spec_.place == place);
  if (moves) spec_.place.node == control::kStandby ? TakeSeat(place) : Move(place);
  if (agent_ && waits) return agent_->SayAll();  // of which its machine's alerts are heard
  if (agent_) {
    view_.Line(fmt::format("attending the coordinator at {}", link_->address()));
    return agent_->SayAll();
  }
  spec_.run_token = run;
  if (waits) view_.Line(fmt::format("a standby: waits for the place of one of {} nodes", place.nodes));
  if (const absl::Status status = Placed(place); !status.ok()) Fail(status);
}

// A node was lost, and its place is ours.
void Node::TakeSeat(const control::Place& place) {
  spec_.place = place;
  agent_->Seat(place);
  view_.Line(fmt::format("takes the place of node {}, with ranks {} to {}", place.node, place.first_rank,
                         place.first_rank + spec_.ranks - 1));
  if (const absl::Status opened = agent_->OpenDisk(); !opened.ok())
    view_.Line(fmt::format("no checkpoints go to disk: {}", Message(opened)));
  KeepPlace();
}

// The world is another one from the coming epoch on, and our place in it.
void Node::Move(const control::Place& place) {
  if (spec_.place == place) return;
  spec_.place = place;
  view_.Line(fmt::format("node {} of {} in the coming epoch, with ranks {} to {} of {}", place.node, place.nodes,
                         place.first_rank, place.first_rank + spec_.ranks - 1, place.world_size));
  agent_->Move(place);
}

// For whoever goes on from here: the place under which its checkpoints were written, and no other.
void Node::KeepPlace() {
  if (const absl::Status kept = KeepSpec(agent_->spec()); !kept.ok()) view_.Line(Message(kept));
}

void Node::Fail(const absl::Status& status) {
  const bool stands_by = agent_ && spec_.place.node == control::kStandby;
  if (stands_by || (agent_ && agent_->epoch().value() != 0)) {
    view_.Line(Message(status));
    exit_code_ = absl::IsUnavailable(status) ? control::kExitLost : control::kExitFailed;
  } else {
    failure_ = status;
  }
  if (agent_) agent_->End();
  poller_.Stop();
}

// Asked before the journal says that somebody watches again. Of a run that has ended its journal says so.
absl::Status Node::CheckStarter() const {
  const absl::Status found = agent::LookForStarter(spec_.run_dir);
  if (found.ok()) return found;
  const auto past = Replay(spec_.run_dir);
  if (past.ok() && past->state.mode == control::Mode::kFinished) return absl::OkStatus();
  return NothingToAdopt(found);
}

absl::Status Node::NothingToAdopt(const absl::Status& why) const {
  return FailedPrecondition("nothing to adopt in {} ({}): {}", spec_.run_dir, Message(why), HowToGoOn(spec_.run_dir));
}

absl::Status Node::Resume() {
  LS_RETURN_IF_ERROR(Lock());
  LS_RETURN_IF_ERROR(Open());
  LS_RETURN_IF_ERROR(CheckStarter());
  for (const std::string& notice : options_.notices) view_.Line(notice);
  adopting_ = true;
  const control::Place place = spec_.place;
  if (!spec_.coordinator.empty()) {
    options_.nodes.own_rank = place.node;
    options_.nodes.least = options_.nodes.most = place.nodes;
    Follow(spec_.coordinator);
    link_->BelongTo(spec_.run_token);
  } else {
    options_.nodes.endpoint = spec_.endpoint;
    LS_RETURN_IF_ERROR(CheckJournal(spec_.run_dir));
    LS_RETURN_IF_ERROR(BeginLeading());
    const absl::Status resumed = lead_->Resume(spec_.run_token);
    if (!resumed.ok()) return At(spec_.run_dir, resumed);
  }
  MakeAgent(place);
  if (const absl::Status opened = agent_->OpenDisk(); !opened.ok())
    view_.Line(fmt::format("no checkpoints go to disk: {}", Message(opened)));
  if (lead_) LS_RETURN_IF_ERROR(lead_->Attend(OwnJoin()));
  const absl::Status adopted = agent_->Adopt();
  if (!adopted.ok()) return NothingToAdopt(adopted);
  KeepPlace();  // and what this watcher was asked for
  if (lead_)
    view_.Line(fmt::format("adopted the workers of epoch {}, which ran on", lead_->head().state().epoch.value()));
  return absl::OkStatus();
}

// ---- words ----

void Node::Say(const control::Said& said) {
  if (const auto* event = std::get_if<control::EventBody>(&said)) {
    if (const auto* exited = std::get_if<control::RankExited>(event)) Remember(*exited);
  }
  if (lead_) {
    lead_->Hear(said);
  } else {
    link_->Say(said);
  }
}

void Node::Told(const control::Told& told) {
  const auto* command = std::get_if<control::Command>(&told);
  // Whatever is asked to be ended is gone, and there is no starter that would say so.
  if (const auto* kill = command != nullptr ? std::get_if<control::KillEpoch>(command) : nullptr;
      kill != nullptr && starter_lost_)
    return Say(control::EventBody(control::EpochStopped{kill->epoch}));
  agent_->Hear(told);
  if (command == nullptr) return;
  if (const auto* finish = std::get_if<control::Finish>(command)) Finish(*finish);
}

// The ranks whose end the verdict is about, as far as it is known here.
std::vector<RankId> Node::Blamed() const {
  std::vector<RankId> ranks;
  if (!IsLeading()) return ranks;
  const control::State& state = lead_->head().state();
  const auto last = std::find_if(state.incidents.rbegin(), state.incidents.rend(),
                                 [&](const incident::Incident& incident) { return incident.epoch == state.epoch; });
  if (last == state.incidents.rend()) return ranks;
  const incident::Finding& lead = incident::Lead(*last);
  if (lead.syndrome != incident::Syndrome::kExit && lead.syndrome != incident::Syndrome::kCrash) return ranks;
  for (const incident::Suspect& suspect : lead.suspects)
    if (const std::optional<RankId> rank = incident::RankOf(suspect)) ranks.push_back(*rank);
  return ranks;
}

// Exits that come after our own kill tell nothing.
void Node::Remember(const control::RankExited& exited) {
  if (starter_lost_ || agent_->IsKilling(exited.epoch)) return;
  const std::vector<control::RankStatus> ranks = agent_->Observe().ranks;
  const auto own = std::find_if(ranks.begin(), ranks.end(), [&](const auto& one) { return one.rank == exited.rank; });
  first_failure_.Add(exited, own != ranks.end() ? own->pid : 0, agent_->restart_count(), clock_.Now(),
                     clock_.WallNow());
}

void Node::Finish(const control::Finish& command) {
  if (std::exchange(finishing_, true)) return;
  agent_->FlushLast([this, command] { Settle(command); });
}

void Node::Settle(const control::Finish& command) {
  exit_code_ = command.exit_code;
  ended_ = clock_.Now();
  console_.Flush();
  view_.Paint(Status(), Incidents());
  view_.Settle();
  const std::string table = first_failure_.Table(agent_->spec(), agent_->epoch(), Blamed());
  if (command.exit_code != 0 && !table.empty()) view_.Line("the first failure\n" + table);
  view_.Line(Clean(command.verdict));
  starter_lost_ ? EndIfAllHeard() : agent_->End();
}

// Nobody can say any more how the workers end: the agent has killed them, and the journal says that the run is over.
void Node::StarterLost() {
  starter_lost_ = true;
  if (exit_code_) return EndIfAllHeard();
  if (finishing_) return;
  const std::string why = fmt::format(
      "the starter process of node {} was killed, and with it went its checkpoints and its workers: nobody else can "
      "know how those ended",
      spec_.node_name);
  view_.Line(why);
  if (spec_.place.node == control::kStandby) return Fail(Unavailable("the starter process was killed"));
  if (!agent_->ready()) Say(control::AllSaid{});  // it died while we took over: there is no more to be said
  const EpochId epoch = agent_->epoch();
  Say(control::EventBody(control::AgentGone{spec_.place.node, why}));
  Say(control::EventBody(control::EpochStopped{epoch}));
  if (link_ && !link_->connected()) Fail(Unavailable("the starter process was killed, and nobody leads"));
}

// ---- the user ----

void Node::AskStop(int signal) {
  if (IsLeading()) return lead_->Hear(control::EventBody(control::StopAsked{signal}));
  const char* name = sigabbrev_np(signal);
  const std::string why = fmt::format("stopped by SIG{}", name ? name : "?");
  if (agent_ && spec_.place.node == control::kStandby) return Fail(MakeError(absl::StatusCode::kCancelled, why));
  if (agent_ && link_ && link_->connected()) return link_->Say(control::EventBody(control::StopAsked{signal}));
  Fail(MakeError(absl::StatusCode::kCancelled,
                 why + (agent_ ? ", out of reach of the coordinator" : " before the job began")));
}

// Ctrl-Z pauses the whole job, and `fg` continues it. The workers have sessions of their own, so we pass it on.
void Node::Suspend() {
  if (!IsLeading() || spec_.place.nodes > 1)
    return view_.Line("Ctrl-Z pauses a job on one node only: training goes on");
  Head& head = lead_->head();
  agent_->SignalWorkers(SIGSTOP);
  head.Handle(control::JobPaused{});
  kill(getpid(), SIGSTOP);
  agent_->SignalWorkers(SIGCONT);
  head.LookAfresh();  // the next tick says for how long we were away
  head.Handle(control::JobContinued{});
}

Json Node::Status() {
  if (IsLeading()) {
    if (agent_) lead_->Hear(agent_->Observe());  // as of now
    return lead_->head().Status();
  }
  control::State state;  // what a node knows that does not lead
  state.spec = Job();
  if (agent_) state.epoch = agent_->epoch();
  Json status = control::StatusReport(state, agent_ ? agent_->Observe() : control::Observed{}, clock_.Now());
  const bool runs = agent_ && agent_->HasWorkers();
  const bool stands_by = agent_ && spec_.place.node == control::kStandby;
  status["state"] = runs ? "running" : stands_by ? "standby" : agent_ ? "attending" : "waiting";
  status["step"] = runs ? Json(agent_->progress().step) : Json();
  if (state.epoch.value() == 0) control::Forget(status["epoch"]);
  for (const char* of_the_job : {"furthest_step", "ettr", "restarts", "incidents", "ignored_events"})
    control::Forget(status[of_the_job]);
  status["coordinator"] = link_ ? link_->address() : spec_.coordinator;
  for (Json& rank : status["ranks"]) rank["node"] = spec_.node_name;
  return status;
}

void Node::Answer(const Json& request, const ControlSocket::Reply& reply) {
  incident::Fields fields(request, "request");
  const std::string op = fields.Text("op");
  if (op == "status") return reply(Status());
  if ((op == "incidents" || op == "why") && !IsLeading() && !spec_.coordinator.empty())
    return reply({{"error", AskElsewhere(spec_.coordinator)}});
  if (op == "incidents") return reply(Incidents());
  if (op == "why" && IsLeading()) return reply(AnswerWhy(lead_->head().state(), request, clock_.Now()));
  if (op == "drill") return reply(Rehearse(request));
  if (op == "update") return reply(AnswerUpdate(request, IsLeading() ? &lead_->head() : nullptr, spec_.coordinator));
  if (op == "stacks" && agent_) {
    return agent_->ReadStacks(RankId(fields.Int32("rank")),
                              [reply](const std::string& text) { reply({{"stacks", text}}); });
  }
  if (op == "stop") {
    AskStop(SIGTERM);
    return reply({{"ok", true}});
  }
  reply({{"error", "unknown request " + op}});
}

// `lockstep drill` is about to break something: written down first, so that nobody takes it for a real fault.
Json Node::Rehearse(const Json& request) {
  if (!spec_.allow_drill) return {{"error", "this run takes no drills: it was started without --allow-drill"}};
  const absl::StatusOr<control::Drilled> drill = control::DrilledFromJson(request);
  if (!drill.ok()) return {{"error", Message(drill.status())}};
  const int first = spec_.place.first_rank;
  if (drill->rank >= 0 && (drill->rank < first || drill->rank >= first + spec_.ranks))
    return {{"error", fmt::format("rank {} is not of this node, which has ranks {} to {}: drill it there", drill->rank,
                                  first, first + spec_.ranks - 1)}};
  if (!agent_ || (drill->epoch != agent_->epoch() && !drill->withdrawn))
    return {{"error", fmt::format("epoch {} is over: the job is being restarted", drill->epoch.value())}};
  const absl::Status hears = IsLeading() ? lead_->head().CheckHears() : absl::OkStatus();
  if (!hears.ok() && !drill->withdrawn) return {{"error", Message(hears)}};
  view_.Line(fmt::format("drill: {}{}", control::Text(*drill), drill->withdrawn ? " was not done" : ""));
  Say(control::EventBody(*drill));
  return {{"epoch", drill->epoch.value()}, {"step", agent_->progress().step}, {"watcher_pid", getpid()}};
}

// ---- the loop ----

// Without a coordinator. A standby has no ranks that could train on.
std::string Node::Meanwhile() const {
  if (starter_lost_) return "the workers of this node are gone with their starter";
  if (agent_ && !agent_->HasWorkers() && spec_.place.node != control::kStandby) return "no workers run here";
  if (spec_.place.node != control::kStandby) return "training goes on";
  return fmt::format("this standby waits for it, at most {:g} s (--rdzv-conf join_timeout=SECONDS)", Patience().value);
}

// A standby has nothing to lose.
Seconds Node::Patience() const {
  return spec_.place.node == control::kStandby ? options_.nodes.join_timeout : spec_.adoption;
}

void Node::TickFollowing() {
  link_->Tick();
  if (agent_) stepped_ = std::max(stepped_, agent_->progress().step_end);
  const Nanos lost = link_->lost_since(), now = clock_.Now();
  if (lost.value == 0 || exit_code_) return;
  if (finishing_) return agent_->GiveUpFlush();  // nobody carries our words to the others any more
  const std::string& why = link_->problem();
  const std::string problem = why.empty()
                                  ? fmt::format("not all nodes are at {} yet", spec_.coordinator)
                                  : fmt::format("the coordinator at {} is out of reach: {}", spec_.coordinator, why);
  if ((!agent_ || adopting_) && !waiting_told_ && now - begun_ > ToNanos(Seconds{2})) {
    waiting_told_ = true;
    view_.Line(problem + "; waiting for it");
  }
  if (!agent_) {
    if (now - begun_ > ToNanos(options_.nodes.join_timeout))
      Fail(MakeError(absl::StatusCode::kDeadlineExceeded,
                     fmt::format("{}; gave up after {} s (--rdzv-conf join_timeout=SECONDS)", problem,
                                 options_.nodes.join_timeout.value)));
  } else if (starter_lost_ || now - std::max(lost, stepped_) > ToNanos(Patience())) {
    // Alone, with workers that wait for others who are gone, or with none: nobody would ever end this.
    Fail(Unavailable("{}, and no rank of this node has finished a step since", problem));
  }
}

void Node::Tick() {
  if (agent_ && !exit_code_) agent_->Tick();
  if (lead_) lead_->Tick();
  if (link_) TickFollowing();
  Publish();
  EndIfAllHeard();
  poller_.SetPeriod(agent_ && agent_->IsSteady() ? kSteadyTick : kTick);
}

// Ours is over; the agents of other nodes leave when they have heard so.
void Node::EndIfAllHeard() {
  const bool others = IsLeading() && !lead_->HaveAllHeard() && clock_.Now() - ended_ < ToNanos(kFarewell);
  if (exit_code_ && starter_lost_ && !others) poller_.Stop();
}

void Node::Publish() {
  const Nanos now = clock_.Now();
  if (exit_code_ || !IsLeading() || now - published_ < ToNanos(kPublish)) return;
  published_ = now;
  if (view_.is_live()) view_.Paint(Status(), Incidents());
  lead_->head().Publish();
}

absl::StatusOr<int> Node::Run() {
  poller_.Run(kTick, [this] { Tick(); });
  LS_RETURN_IF_ERROR(failure_);
  if (IsLeading()) lead_->head().Drain();
  return exit_code_.value_or(control::kExitFailed);
}

}  // namespace

absl::StatusOr<int> RunJob(const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, MakeSpec(options));
  BlockSignals(options.stop_signals);
  const std::string run_dir = spec.run_dir;
  Node node(std::move(spec), options);
  const absl::Status begun = node.Begin();
  absl::StatusOr<int> ended = begun.ok() ? node.Run() : begun;
  const bool never_ran = !begun.ok() || (!ended.ok() && !node.launched());
  if (never_ran && node.HoldsRunDir()) ForgetRun(run_dir);
  return ended;
}

absl::StatusOr<int> ResumeJob(const std::string& run_dir, const RunOptions& options) {
  LS_ASSIGN_OR_RETURN(const std::string found, FindRunDir(run_dir));
  LS_ASSIGN_OR_RETURN(agent::RunSpec spec, agent::ReadRunSpec(found));
  LS_RETURN_IF_ERROR(CheckInPlace(found, spec));
  LS_RETURN_IF_ERROR(CheckOwner(found));
  LS_RETURN_IF_ERROR(AllowOpenFiles(spec.ranks));
  if (spec.ranks == 0) return InvalidArgument("{} is of a coordinator without ranks; {}", found, HowToGoOn(found));
  if (options.ranks > 1 && options.ranks != spec.ranks) {
    return InvalidArgument(
        "{} holds a run of {} ranks, --nproc-per-node says {}; leave the option out to go on with it", found,
        spec.ranks, options.ranks);
  }
  BlockSignals(options.stop_signals);
  RunOptions same = options;
  same.resumes = true;
  spec.watching = KeptOptions(options);
  Node node(std::move(spec), same);
  LS_RETURN_IF_ERROR(node.Resume());
  return node.Run();
}

}  // namespace lockstep::node
