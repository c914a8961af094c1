// The coordinator's process in a simulation, around the Conductor that leads: the network to it and from it, how it
// dies, how another one takes over, and the mutants of what it hears, decides and tells.
#include <signal.h>

#include <algorithm>
#include <limits>

#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr double kDiesInTheMiddle = 0.06, kLeavesMeanwhile = 0.1;
constexpr Seconds kTick{0.1};                          // as in node/run.cc
constexpr Seconds kComeAnew{2}, kToCatchUp{4};         // as in node/lead.cc and conductor.cc
constexpr Seconds kLastStop{10}, kKillArrives{0.015};  // all is healed later
constexpr Seconds kLookForUnseen{0.5};

}  // namespace

// ---- the network ----

// Facts may come twice. That all was said is true of one stream.
void Simulation::Up(int machine, Said said) {
  const bool may_repeat = !std::holds_alternative<AllSaid>(said);
  network_.ToCoordinator(machine, may_repeat, [this, machine, said = std::move(said)] {
    const int node = cluster_.NodeOf(machine);
    if (!leads_ || node < 0) return;
    news_ = true;
    Hear(node, said);
  });
}

// Commands are idempotent; of questions only the newest stands.
void Simulation::Down(int node, const Told& told) {
  const auto* on_disk = std::get_if<ChooseOnDisk>(&told);
  const bool again = on_disk != nullptr && on_disk->not_above.step != std::numeric_limits<int64_t>::max();
  if (again && plan_.mutant == Mutant::kOneLook) return Handle(RestoreChosen{on_disk->next, {}, {}});
  if (forgets_) return;
  const bool may_repeat = on_disk == nullptr && !std::holds_alternative<FetchKept>(told);
  const int machine = cluster_.MachineAt(node);
  network_.ToAgent(machine, may_repeat, [this, machine, told] { cluster_.Tell(machine, told); });
  const auto* command = std::get_if<Command>(&told);
  if (command && std::holds_alternative<KillEpoch>(*command)) killed_by_[machine] = network_.ToldBy(machine);
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

void Simulation::Lost(int machine, const std::string& why, Seconds silence) {
  if (const int node = cluster_.NodeOf(machine); leads_ && node >= 0 && !coordinator_->holds())
    conductor_->Lost(node, why, silence);
}

// ---- it hears ----

void Simulation::Hear(int node, const Said& said) {
  if (coordinator_->holds()) return;
  if (const auto* fact = std::get_if<EventBody>(&said)) return Hear(node, *fact);
  const auto* found = std::get_if<RestoreFound>(&said);
  if (found != nullptr && plan_.mutant == Mutant::kAnyNodesPoint) {
    RestoreChosen chosen{found->epoch, {}, found->rejected};
    for (const CheckpointId& point : found->points) chosen.point = std::max(chosen.point, std::optional(point));
    return Handle(chosen);
  }
  const bool tells = std::holds_alternative<Samples>(said);
  if (tells && plan_.mutant == Mutant::kNeverCaughtUp) return;
  forgets_ = std::holds_alternative<AllSaid>(said) && plan_.mutant == Mutant::kForgetPending;
  conductor_->Hear(node, said);
  forgets_ = false;
  const Progress progress = conductor_->fleet().progress();  // as control/judge.cc tells it
  if (tells && progress.step_end.value != 0) Handle(ProgressSeen{state().epoch, progress});
}

void Simulation::Hear(int node, EventBody said) {
  if (plan_.mutant == Mutant::kFirstNodeStopped && std::holds_alternative<EpochStopped>(said)) return Handle(said);
  if (plan_.mutant == Mutant::kMixedCode && std::holds_alternative<CodeKept>(said)) return Handle(said);
  if (plan_.mutant == Mutant::kNoFence)
    std::visit(
        [&](auto& body) {
          if constexpr (requires { body.epoch; }) body.epoch = state().epoch;
        },
        said);
  conductor_->Hear(node, Said(std::move(said)));
}

void Simulation::HearStop(int node) {
  const EventBody stop = StopAsked{SIGTERM};
  plan_.mutant == Mutant::kStopPerNode ? Handle(stop) : Hear(node, stop);
}

// ---- it decides ----

void Simulation::Handle(const EventBody& body) {
  if (leads_) conductor_->Handle(body);
}

std::vector<Command> Simulation::Decide(EventBody body) {
  const bool heard = !coordinator_->holds() || std::holds_alternative<StopAsked>(body);
  if (!leads_ || !heard) return {};
  news_ = true;
  Mutate(body);
  promises_.Hear(state(), body);
  if (const auto* overdue = std::get_if<StopOverdue>(&body)) CheckStuck(*overdue);
  if (IsSwallowed(body)) return {};
  const Mode before = state().mode;
  const bool unseen = state().unseen;
  const std::string was = ModeText();
  auto commands = coordinator_->Handle(body);
  if (!commands.ok()) {
    promises_.Break(Message(commands.status()));
    return {};
  }
  if (!std::holds_alternative<ProgressSeen>(body) && !std::holds_alternative<control::Tick>(body))
    Tell("{} in {}", EventText(body), was);
  if (before != state().mode || was != ModeText()) NoteTransition(was);
  if (unseen && state().in_loop && !state().unseen) ++result_.after_all;
  const auto* chosen = std::get_if<RestoreChosen>(&body);
  if (chosen && !chosen->unfit.empty() && before == Mode::kChoosing)
    ++result_.worlds[state().mode == Mode::kChoosing ? "not larger after all" : "not to be gone on with"];
  return DiesInTheMiddle(*commands) ? std::vector<Command>() : *std::move(commands);
}

// Whoever is said to be stuck is, or had no chance to say that its ranks have ended.
void Simulation::CheckStuck(const StopOverdue& overdue) {
  for (const int node : overdue.nodes) {
    const int machine = cluster_.MachineAt(node);
    const bool ended = !cluster_.IsDead(machine) && !cluster_.HasRanks(machine) && !cluster_.MayRunOn(machine);
    if (ended && schedule_.now() < caught_up_at_ && network_.IsOpenTo(machine))
      promises_.Break(fmt::format("ranks of node {} had ended while nobody could hear of it", NameOf(node)));
  }
}

void Simulation::Mutate(EventBody& body) const {
  auto* alert = std::get_if<Alerted>(&body);
  if (alert && plan_.mutant == Mutant::kWrongNode) alert->node = (alert->node + 1) % cluster_.nodes();
  auto* probed = std::get_if<Probed>(&body);
  if (!probed || probed->rung != Rung::kReplay || plan_.mutant != Mutant::kReplayOfAnother) return;
  for (incident::Finding& finding : probed->findings)
    for (incident::Suspect& suspect : finding.suspects) suspect.name = NameOfNext(suspect.name);
}

// Of the node after it.
std::string Simulation::NameOfNext(const std::string& name) const {
  const std::vector<NodeSpec>& nodes = state().spec.nodes;
  const auto node = std::ranges::find(nodes, name, &NodeSpec::name);
  return node == nodes.end() || node + 1 == nodes.end() ? nodes.front().name : (node + 1)->name;
}

bool Simulation::IsSwallowed(const EventBody& body) const {
  using enum Mutant;
  const auto is = [this](Mutant mutant) { return plan_.mutant == mutant; };
  const bool is_end = state().mode == Mode::kFinishing;
  if (std::holds_alternative<StopAsked>(body))
    return (is(kDeafToStop) && state().mode == Mode::kStopping) || (is(kStopOnce) && is_end);
  if (std::holds_alternative<AgentBack>(body)) return is(kNeverBack);
  if (const auto* alert = std::get_if<Alerted>(&body)) return is(kDeafToStandbys) && !alert->token.empty();
  if (std::holds_alternative<JournalBehind>(body)) return is(kTrustJournal);
  if (const auto* gone = std::get_if<AgentGone>(&body))
    return is(kNeverGone) || (is(kAwaitForever) && state().awaited.contains(gone->node));
  if (std::holds_alternative<EpochStopped>(body))
    return (is(kGoneRunsOn) && SomeAreAway()) || (is(kVacantRunsOn) && !state().vacated.empty());
  if (std::holds_alternative<StopOverdue>(body)) {
    if (is_end) return is(kEndForever) || is(kGoneRunsOn);  // it would end what that leaves waiting
    return is(kStopForever) && !state().fault.plan.evict.empty();
  }
  const auto* probed = std::get_if<Probed>(&body);
  const bool by_time = probed != nullptr && !probed->unanswered.empty();
  return by_time && is(probed->rung == Rung::kReplay ? kReplayForever : kProbeForever);
}

bool Simulation::SomeAreAway() const {
  for (int node = 0; node < conductor_->nodes(); ++node)
    if (!conductor_->Attends(node)) return true;
  return false;
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

void Simulation::Carried(const Command& command) {
  promises_.Ask(state(), command);
  if (const auto* probe = std::get_if<Probe>(&command)) result_.replays += probe->rung == Rung::kReplay ? 1 : 0;
  if (const auto* seat = std::get_if<control::Seat>(&command)) Seat(seat->node, seat->standby);
  if (const auto* vacate = std::get_if<control::Vacate>(&command)) Vacate(vacate->node);
  if (const auto* resize = std::get_if<control::Resize>(&command)) Resize(resize->from);
  finished_ = finished_ || std::holds_alternative<Finish>(command);
  if (std::holds_alternative<KillEpoch>(command) && stops_after_kill_ && schedule_.now() < ToNanos(kLastStop))
    schedule_.In(kKillArrives,
                 [this, duration = *std::exchange(stops_after_kill_, std::nullopt)] { StopCoordinator(duration); });
}

// ---- its process ----

void Simulation::Lead(const std::vector<Command>& commands) {
  network_.Know(cluster_.machines());
  for (const int vacant : state().vacated) {
    cluster_.Expel(cluster_.MachineAt(vacant));
    network_.Refuse(cluster_.MachineAt(vacant));
  }
  network_.Open();
  conductor_.emplace(state(), clock_,
                     Conductor::Listener{.decide = [this](const EventBody& body) { return Decide(body); },
                                         .tell = [this](int node, const Told& told) { Down(node, told); },
                                         .carried = [this](const Command& command) { Carried(command); }});
  conductor_->Begin(commands);
}

void Simulation::Tick() {
  schedule_.In(kTick, [this] { Tick(); });
  if (leads_) TickConductor();
}

void Simulation::TickConductor() { coordinator_->holds() ? AwaitJournal() : conductor_->Tick(); }

// As in node/head.cc and node/lead.cc: nobody was heard meanwhile.
void Simulation::AwaitJournal() {
  promises_.Excuse();
  auto held = coordinator_->Handle(control::Tick{});
  if (!held.ok()) return promises_.Break(Message(held.status()));
  if (coordinator_->holds()) return;
  Tell("the journal has who has which place");
  news_ = true;
  Lead(PendingCommands(state()));
  for (const Command& command : *held)
    if (!std::holds_alternative<KillEpoch>(command)) Carried(command);
  const std::vector<NodeSpec> standbys = state().standbys;
  for (const NodeSpec& standby : standbys)
    if (chance_.Hits(kLeavesMeanwhile)) Handle(StandbyLeft{standby.token});
  for (int node = 0; node < cluster_.nodes(); ++node)
    network_.IsUp(cluster_.MachineAt(node)) ? Welcome(node) : network_.Connect(cluster_.MachineAt(node));
}

void Simulation::KillCoordinator() {
  if (!leads_ || finished_ || disk_.rows.empty()) return;
  const bool forgets = coordinator_->events_waiting() > 0 ||
                       coordinator_->holds();  // what a full disk has not taken is gone with the process
  Tell("the coordinator is killed{}", forgets ? ", with what it had no room to write" : "");
  cluster_.Disturb();
  news_ = true;
  leads_ = false;
  network_.Close();
  schedule_.In(chance_.Between(0.2, 3), [this, forgets] { ResumeCoordinator(forgets); });
}

// For so long that agents give it up: what they say meanwhile goes nowhere.
void Simulation::StopCoordinator(Seconds duration) {
  if (!leads_ || finished_ || disk_.rows.empty()) return;
  Tell("the coordinator's process is stopped for {:.1f} s", duration.value);
  cluster_.Disturb();
  news_ = true;
  leads_ = false;
  network_.Close();
  schedule_.In(duration, [this, duration] { ContinueCoordinator(duration); });
}

// As in node/lead.cc: its first tick is before it has heard anybody.
void Simulation::ContinueCoordinator(Seconds away) {
  Tell("the coordinator's process goes on");
  news_ = leads_ = true;
  caught_up_at_ = schedule_.now() + ToNanos(kToCatchUp);
  network_.Open();
  for (int node = 0; node < conductor_->nodes(); ++node) conductor_->LeftUs(node);
  if (plan_.mutant != Mutant::kBlameOthers) conductor_->WasAway(ToNanos(away));
  TickConductor();
  for (int machine = 0; machine < cluster_.machines(); ++machine)
    schedule_.In(chance_.Between(0, 1), [this, machine] { network_.Connect(machine); });
  schedule_.In(kComeAnew, [this] {
    for (int node = 0; leads_ && node < conductor_->nodes(); ++node)
      if (!network_.IsUp(cluster_.MachineAt(node))) conductor_->Lost(node, "its connection was lost");
  });
}

// Who was told that it has a place, has it by the journal, or had it.
void Simulation::CheckPlaces() {
  for (int node = 0; node < cluster_.nodes(); ++node) {
    const std::string& token = cluster_.TokenOf(cluster_.MachineAt(node));
    const auto is_it = [&](const auto& had) { return had == token; };
    const bool has = std::ranges::any_of(state().spec.nodes, is_it, &NodeSpec::token);
    const bool had = std::ranges::any_of(state().evictions, is_it, [](const Eviction& e) { return e.node.token; });
    if (!has && !had) promises_.Break(fmt::format("node {} has a place of which the journal knows nothing", token));
  }
}

void Simulation::ResumeCoordinator(bool forgets) {
  auto resumed = Coordinator::Resume(disk_, clock_);
  if (!resumed.ok()) return promises_.Break(Message(resumed.status()));
  const std::vector<NodeSpec> stood_by = state().standbys;
  conductor_.reset();
  coordinator_ = std::move(resumed->coordinator);
  news_ = leads_ = true;
  promises_.TakeOver();
  if (forgets) promises_.Forget(state());
  Tell("another coordinator takes over in mode {}, epoch {}", ModeText(), state().epoch.value());
  CheckPlaces();
  cluster_.Know(state().spec.nodes);
  Lead(resumed->commands);
  for (int machine = 0; machine < cluster_.machines(); ++machine)
    schedule_.In(chance_.Between(0, 1), [this, machine] { network_.Connect(machine); });
  StandbysCome(1);
  for (const NodeSpec& standby : stood_by)
    if (standby.name.starts_with("j"))
      schedule_.In(chance_.Between(0, 1), [this, name = standby.name] { StandbyComes(name); });
}

}  // namespace lockstep::control
