// The coordinator's process in a simulation: what it hears over the network, decides and carries out, as node/head.cc
// has it; how it dies, and how another one takes over.
#include <signal.h>

#include <algorithm>

#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr double kDiesInTheMiddle = 0.06;
constexpr Seconds kLookForUnseen{0.5};

}  // namespace

// ---- the network ----

// Facts may come twice. That all was said is true of one stream.
void Simulation::Up(int machine, Said said) {
  const bool may_repeat = !std::holds_alternative<AllSaid>(said);
  network_.ToCoordinator(machine, may_repeat, [this, machine, said = std::move(said)] {
    const int node = cluster_.NodeOf(machine);
    if (!coordinator_ || node < 0) return;
    news_ = true;
    std::visit([&](const auto& body) { Hear(node, body); }, said);
  });
}

void Simulation::Down(int node, const Told& told) { Send(node, std::make_shared<const Told>(told)); }

void Simulation::DownAll(const Told& told) {
  const auto shared = std::make_shared<const Told>(told);
  for (int node = 0; node < cluster_.nodes(); ++node) Send(node, shared);
}

// Commands are idempotent; of questions only the newest stands. Shared, for they are many and arrive at any time.
void Simulation::Send(int node, const std::shared_ptr<const Told>& told) {
  const bool may_repeat = !std::holds_alternative<ChooseOnDisk>(*told) && !std::holds_alternative<FetchKept>(*told);
  if (!Of(node).attends) return;
  const int machine = cluster_.MachineAt(node);
  network_.ToAgent(machine, may_repeat, [this, machine, told] { cluster_.Tell(machine, *told); });
}

// It is told its place, or that it has none: then whatever it runs ends.
void Simulation::Joined(int machine) {
  const int node = cluster_.NodeOf(machine);
  if (node >= 0) return Welcome(node);
  cluster_.Expel(machine);
  network_.Refuse(machine);
}

void Simulation::Welcome(int node) {
  const int machine = cluster_.MachineAt(node);
  const HeldAs place{node, cluster_.nodes()};
  network_.ToAgent(machine, false, [this, machine, place] { cluster_.Welcome(machine, place); });
}

void Simulation::Lost(int machine, const std::string& why) {
  const int node = cluster_.NodeOf(machine);
  if (node < 0 || !Of(node).attends) return;
  Attendant& lost = Change(node);
  lost.attends = false;
  lost.lost_since = schedule_.now();
  fleet_->Away(node);
  Handle(AgentLost{node, NameOf(node), why, schedule_.now()});
}

// ---- it hears ----

void Simulation::Hear(int node, const EventBody& said) {
  if (const auto* seen = std::get_if<ProgressSeen>(&said); seen && seen->progress.step_end > newest_step_end_) {
    newest_step_end_ = seen->progress.step_end;
    advanced_at_ = schedule_.now();
  }
  for (const EventBody& event : Filtered(node, said)) Handle(event);
}

std::vector<EventBody> Simulation::Filtered(int node, EventBody said) {
  const bool first_counts = plan_.mutant == Mutant::kFirstNodeStopped && std::holds_alternative<EpochStopped>(said);
  if (first_counts) return {said};
  if (plan_.mutant == Mutant::kNoFence)
    std::visit(
        [&](auto& body) {
          if constexpr (requires { body.epoch; }) body.epoch = state().epoch;
        },
        said);
  if (plan_.mutant == Mutant::kMixedCode && std::holds_alternative<CodeKept>(said)) return {said};
  const bool progress = std::holds_alternative<ProgressSeen>(said) || std::holds_alternative<CaughtUp>(said);
  if (progress && plan_.mutant == Mutant::kNeverCaughtUp) return {};
  std::vector<EventBody> events = fleet_->Hear(node, said);
  for (EventBody& event : events)
    if (auto* alert = std::get_if<Alerted>(&event); alert && plan_.mutant == Mutant::kWrongNode)
      alert->node = (node + 1) % cluster_.nodes();
  return events;
}

void Simulation::Hear(int node, const RestoreFound& found) {
  if (plan_.mutant == Mutant::kAnyNodesPoint) {
    RestoreChosen chosen{found.epoch, {}, found.rejected};
    for (const CheckpointId& point : found.points) chosen.point = std::max(chosen.point, std::optional(point));
    return Handle(chosen);
  }
  for (const EventBody& event : fleet_->Hear(node, found)) Handle(event);
  const Fleet::Questions questions = fleet_->TakeQuestions();
  const bool again = found.not_above && !questions.empty();
  if (again && plan_.mutant == Mutant::kOneLook) return Handle(RestoreChosen{found.epoch, {}, {}});
  for (const auto& [whom, question] : questions) Down(whom, question);
}

void Simulation::Hear(int node, const Holding& holding) {
  fleet_->Hear(node, holding);
  if (const std::optional<Commit> news = fleet_->CommitNews()) DownAll(*news);
}

void Simulation::Hear(int node, const AllSaid& said) {
  Attendant& back = Change(node);
  back.attends = true;
  back.lost_since = Nanos{};
  if (state().lost_agents.contains(node) && plan_.mutant != Mutant::kNeverBack) Handle(AgentBack{node});
  if (said.epoch > state().epoch && plan_.mutant != Mutant::kTrustJournal) Handle(JournalBehind{said.epoch});
  if (plan_.mutant == Mutant::kForgetPending) return;
  if (cluster_.nodes() > 1 && EverybodyIsHere() && fleet_->MeetAnew()) {
    DownAll(fleet_->commit());
  } else {
    Down(node, fleet_->commit());
  }
  if (const std::optional<Version> version = VersionToCopy(state())) Down(node, Command(KeepCode{*version}));
  for (const Command& command : PendingCommands(state())) {
    Down(node, Asked(node, command));
    const auto* wait = std::get_if<WaitForStop>(&command);
    if (wait != nullptr && state().mode == Mode::kFinishing) AwaitStop(*wait);
  }
}

// A scheduler that ends a job signals every node: only a node that asks for the second time means "at once".
void Simulation::HearStop(int node) {
  const bool first = !std::exchange(Change(node).asked_stop, true);
  const bool ending = state().mode == Mode::kFinishing;
  if (ending && first && plan_.mutant != Mutant::kStopPerNode) return;
  Handle(StopAsked{SIGTERM});
}

// ---- it decides ----

void Simulation::Handle(const EventBody& body) {
  if (!coordinator_) return;
  news_ = true;
  promises_.Hear(state(), body);
  if (IsSwallowed(body)) return;
  const Mode before = state().mode;
  const bool unseen = state().unseen;
  const std::string was = ModeText();
  const auto commands = coordinator_->Handle(body);
  if (!commands.ok()) return promises_.Break(Message(commands.status()));
  if (!std::holds_alternative<ProgressSeen>(body)) Tell("{} in {}", EventText(body), was);
  if (before != state().mode || was != ModeText()) NoteTransition(was);
  if (unseen && state().in_loop && !state().unseen) ++result_.after_all;
  const auto* chosen = std::get_if<RestoreChosen>(&body);
  if (chosen && !chosen->unfit.empty() && before == Mode::kChoosing)
    ++result_.worlds[state().mode == Mode::kChoosing ? "not larger after all" : "not to be gone on with"];
  if (DiesInTheMiddle(*commands)) return;
  Carry(*commands);
  LeaveReplay();
}

// It has written down that nodes go and come, and told nobody.
bool Simulation::DiesInTheMiddle(const std::vector<Command>& commands) {
  std::vector<int> gone;
  bool changes = false;
  for (const Command& command : commands) {
    if (const auto* seat = std::get_if<control::Seat>(&command)) gone.push_back(seat->node);
    if (const auto* vacate = std::get_if<control::Vacate>(&command)) gone.push_back(vacate->node);
    changes = changes || !gone.empty() || std::holds_alternative<control::Resize>(command);
  }
  if (!plan_.elastic || finished_ || !changes || !counting_.Hits(kDiesInTheMiddle)) return false;
  for (const int node : gone) {
    promises_.Replace(cluster_.IsDead(cluster_.MachineAt(node)));
    cluster_.Expel(cluster_.MachineAt(node));
  }
  KillCoordinator();
  return true;
}

bool Simulation::IsSwallowed(const EventBody& body) const {
  const bool stop = std::holds_alternative<StopAsked>(body);
  if (stop && plan_.mutant == Mutant::kDeafToStop) return state().mode == Mode::kStopping;
  if (stop && plan_.mutant == Mutant::kStopOnce) return state().mode == Mode::kFinishing;
  return std::holds_alternative<AgentGone>(body) && plan_.mutant == Mutant::kNeverGone;
}

// As control/judge.cc has it, where nobody joins before the loop begins.
void Simulation::LookForTheUnseen() {
  schedule_.In(kLookForUnseen, [this] { LookForTheUnseen(); });
  if (plan_.mutant == Mutant::kNeverUnseen || !EverybodyIsHere() || !TrainsUnseen(state(), schedule_.now())) return;
  ++result_.unseen;
  Handle(LoopBegan{state().epoch, schedule_.now(), state().restore, true});
}

std::string Simulation::ModeText() const { return state().epoch.value() == 0 ? "none" : ModeName(state().mode); }

void Simulation::NoteTransition(const std::string& was) {
  ++result_.transitions[fmt::format("{} -> {}", was, ModeText())];
  ++result_.modes[ModeText()];
  Tell("{} -> {}, epoch {}", was, ModeText(), state().epoch.value());
}

// What follows from commands is heard when all are carried out.
void Simulation::Carry(const std::vector<Command>& commands) {
  CarryEach(commands);
  for (const EventBody& event : std::exchange(later_, {})) Handle(event);
}

void Simulation::CarryEach(const std::vector<Command>& commands) {
  for (const Command& command : commands) {
    promises_.Ask(state(), command);
    if (const auto* spawn = std::get_if<Spawn>(&command)) fleet_->Begin(spawn->epoch);
    if (const auto* kill = std::get_if<KillEpoch>(&command)) {
      fleet_->Begin(kill->epoch);
      schedule_.In(state().spec.policy.stuck_within, [this, epoch = kill->epoch] { LookForTheStuck(epoch); });
    }
    if (const auto* wait = std::get_if<WaitForCulprit>(&command)) {
      schedule_.In(wait->at_most, [this, epoch = wait->epoch] {
        if (coordinator_) Handle(SecondaryGraceOver{epoch});
      });
    }
    if (const auto* choose = std::get_if<ChooseRestore>(&command)) fleet_->Poison(choose->poisoned);
    if (const auto* stop = std::get_if<WaitForStop>(&command)) AwaitStop(*stop);
    if (const auto* probe = std::get_if<Probe>(&command)) {
      Ask(*probe);
      continue;
    }
    if (const auto* seat = std::get_if<control::Seat>(&command)) Seat(seat->node, seat->standby);
    if (const auto* vacate = std::get_if<control::Vacate>(&command)) Vacate(vacate->node);
    if (const auto* resize = std::get_if<control::Resize>(&command)) Resize(resize->from);
    if (std::holds_alternative<Finish>(command)) finished_ = true;
    DownAll(command);
  }
}

void Simulation::AwaitStop(const WaitForStop& stop) {
  const bool is_end = state().mode == Mode::kFinishing;
  const bool masks = is_end && plan_.mutant == Mutant::kGoneRunsOn;  // it would end what that leaves waiting
  if (masks || plan_.mutant == (is_end ? Mutant::kEndForever : Mutant::kStopForever)) return;
  // An order may be as late as this, which in earnest is nothing beside what a policy gives.
  const Seconds late = is_end ? kSilenceNoticed + Seconds{1} : Seconds{};
  const uint64_t wait = ++stop_waits_;
  schedule_.In(stop.at_most + late, [this, stop, wait, is_end] {
    if (!coordinator_ || (is_end && wait != stop_waits_)) return;
    if (state().mode == Mode::kFinishing && !EverybodyIsHere()) return AwaitStop(stop);
    Handle(StopOverdue{stop.epoch, {}, fleet_->Unstopped()});
  });
}

void Simulation::LookForTheStuck(EpochId epoch) {
  if (!coordinator_ || state().mode != Mode::kStopping || state().epoch != epoch) return;
  stuck_for_ = epoch;
  if (const std::vector<int> stuck = fleet_->Unstopped(); !stuck.empty()) Handle(StopOverdue{epoch, stuck});
}

void Simulation::EndProbe(const Probe& probe) {
  if (!coordinator_ || state().mode != Mode::kProbing || state().epoch != probe.epoch) return;
  if (state().fault.plan.rung != probe.rung) return;
  std::vector<int> unanswered;
  Probed probed = fleet_->Overdue(probe.rung, unanswered);
  for (const int node : unanswered) probed.unanswered.push_back(NameOf(node));
  Handle(probed);
}

// ---- its process ----

void Simulation::BeginToListen(EpochId epoch) {
  MakeFleet(epoch, state().in_loop && !state().unseen);
  attendants_.clear();
  KnowMachines();
  for (const int vacant : state().vacated) {
    cluster_.Expel(cluster_.MachineAt(vacant));
    network_.Refuse(cluster_.MachineAt(vacant));
    Change(vacant) = {.gone = true};
    if (plan_.mutant != Mutant::kVacantRunsOn) (void)fleet_->Vacate(vacant);
  }
  network_.Open();
}

void Simulation::MakeFleet(EpochId epoch, bool in_loop) {
  std::vector<int> keepers;
  const int nodes = cluster_.nodes();
  for (int node = 0; node < nodes; ++node) keepers.push_back(nodes > 1 ? (node + 1) % nodes : -1);
  fleet_ = std::make_unique<Fleet>(std::move(keepers));
  fleet_->Begin(epoch, in_loop);
}

void Simulation::KillCoordinator() {
  if (!coordinator_ || finished_ || disk_.rows.empty()) return;
  const bool forgets = coordinator_->events_waiting() > 0;  // what a full disk has not taken is gone with the process
  Tell("the coordinator is killed{}", forgets ? ", with what it had no room to write" : "");
  cluster_.Disturb();
  last_state_ = state();
  news_ = true;
  coordinator_.reset();
  replay_.reset();
  network_.Close();
  schedule_.In(chance_.Between(0.2, 3), [this, forgets] { ResumeCoordinator(forgets); });
}

void Simulation::ResumeCoordinator(bool forgets) {
  auto resumed = Coordinator::Resume(disk_, clock_);
  if (!resumed.ok()) return promises_.Break(Message(resumed.status()));
  coordinator_ = std::move(resumed->coordinator);
  news_ = true;
  promises_.TakeOver();
  if (forgets) promises_.Forget(state());
  Tell("another coordinator takes over in mode {}, epoch {}", ModeText(), state().epoch.value());
  cluster_.Know(state().spec.nodes);
  const uint64_t coming = state().mode == Mode::kLoading ? 1 : 0;  // then the acting epoch has not begun
  BeginToListen(EpochId(state().epoch.value() - coming));
  Carry(resumed->commands);
  for (int machine = 0; machine < cluster_.machines(); ++machine)
    schedule_.In(chance_.Between(0, 1), [this, machine] { network_.Connect(machine); });
  StandbysCome(1);
  for (const NodeSpec& standby : last_state_.standbys)
    if (standby.name.starts_with("j"))
      schedule_.In(chance_.Between(0, 1), [this, name = standby.name] { StandbyComes(name); });
}

}  // namespace lockstep::control
