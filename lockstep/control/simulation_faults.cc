// What breaks in a simulation, and what users ask for meanwhile: when, and how.
#include <signal.h>

#include <algorithm>

#include "lockstep/control/ranks_end.h"
#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr double kFaultsFrom = 0.02, kFaultsUntil = 12, kHealed = 21, kStop = 0.2, kNodeLost = 0.08, kUpdates = 0.15,
                 kCoordinatorStops = 0.1;
constexpr double kSpoilt = 0.8;  // of jobs that may evict it: one has a machine that only a replay finds
constexpr double kTwoAtOnce = 0.35, kCoordinatorToo = 0.4, kFirstNode = 0.3;
constexpr int kCrashesToReplay = 3;  // the first is no reason to look for a machine, the second to diagnose them

}  // namespace

// ---- the plan ----

void Simulation::PlanFaults() {
  const int faults = chance_.Below(7);
  Seconds at{kFaultsFrom};
  for (int i = 0; i < faults; ++i)
    schedule_.In(at = chance_.Between(kFaultsFrom, kFaultsUntil), [this] { BreakSomething(); });
  const bool in_the_middle_of_it = chance_.Hits(0.5);
  if (chance_.Hits(kStop))
    schedule_.In(in_the_middle_of_it ? at + chance_.Between(0, 0.5) : chance_.Between(kFaultsFrom, kFaultsUntil),
                 [this] { AskStop(); });
  if (chance_.Hits(kNodeLost)) schedule_.In(chance_.Between(kFaultsFrom, kFaultsUntil), [this] { LoseANode(); });
  PlanUpdates();
  PlanStop();
  PlanReplay();
  PlanWorlds();
  if (state().spec.observe_only) schedule_.In(chance_.Between(20, 40), [this] { AskStopUntilItEnds(); });
  // What happens in the first moments, too, may never be written down.
  if (state().spec.load_first && chance_.Hits(0.3))
    schedule_.In(chance_.Between(kFaultsFrom, 0.2), [this] { FillDisk(cluster_.MachineAt(SomeNode()), 0); });
  schedule_.In(Seconds{kHealed}, [this] { Heal(); });
}

// By chances of their own: without them all else stays as it is.
void Simulation::PlanUpdates() {
  Chance chance(plan_.seed + 1'000'000'007);
  if (!chance.Hits(kUpdates)) return;
  for (int i = chance.Below(3); i >= 0; --i) {
    UpdateAsked asked{.env = {{"N", std::to_string(i)}}, .now = chance.Hits(0.6), .within = chance.Between(0, 10)};
    if (chance.Hits(0.7)) asked.code = asked.hash = fmt::format("code {}", i);
    schedule_.In(chance.Between(kFaultsFrom, kFaultsUntil), [this, asked] { AskForUpdate(asked); });
  }
}

// By chances of their own, too.
void Simulation::PlanStop() {
  Chance chance(plan_.seed + 9'000'000'011);
  if (!chance.Hits(kCoordinatorStops)) return;
  const Seconds at = chance.Between(kFaultsFrom, 9), duration = chance.Between(4, 10);
  const bool in_the_middle_of_it = chance.Hits(0.7);
  schedule_.In(at, [=, this] { in_the_middle_of_it ? void(stops_after_kill_ = duration) : StopCoordinator(duration); });
}

// By chances of their own, too. Of fewer than three nodes replays name none.
void Simulation::PlanReplay() {
  Chance chance(plan_.seed + 11'000'000'003);
  const JobSpec& spec = state().spec;
  const bool may_evict = spec.standbys > 0 && spec.policy.evictions_per_hour > 0 && !spec.policy.dry_run;
  if (plan_.nodes < 3 || plan_.nodes >= kMany || !may_evict || !chance.Hits(kSpoilt)) return;
  const int machine = cluster_.MachineAt(chance.Below(plan_.nodes));
  schedule_.In(chance.Between(kFaultsFrom, 6), [this, machine] {
    Tell("the machine of node {} is broken, and only a replay finds it", cluster_.NameOf(machine));
    promises_.Accuse(cluster_.TokenOf(machine));
    promises_.Spoil(cluster_.TokenOf(machine));
    cluster_.Spoil(machine, Rung::kReplay);
    CrashAgain(machine, kCrashesToReplay);
  });
}

// As soon as the job trains again: a step higher on the ladder each time.
void Simulation::CrashAgain(int machine, int times) {
  if (finished_ || times == 0) return;
  const bool trains = leads_ && state().mode == Mode::kRunning;
  if (trains) Crash(machine, 0);
  schedule_.In(Seconds{0.5}, [=, this] { CrashAgain(machine, trains ? times - 1 : times); });
}

// Machines are lost, some at once, some while the loss of the one before is under way; others come, and some of them
// leave before they have a place.
void Simulation::PlanWorlds() {
  if (!plan_.elastic) return;
  Chance chance(plan_.seed + 3'000'000'019);
  for (int losses = chance.Below(4); losses > 0; --losses) {
    const Seconds at = chance.Between(kFaultsFrom, kFaultsUntil);
    const Seconds next = chance.Hits(kTwoAtOnce) ? at : Seconds{at.value + chance.Between(0, 16).value};
    schedule_.In(at, [this] { LoseANode(); });
    if (chance.Hits(0.3)) schedule_.In(next, [this] { LoseANode(); });
    if (chance.Hits(kCoordinatorToo))
      schedule_.In(Seconds{at.value + chance.Between(0, 14).value}, [this] { KillCoordinator(); });
  }
  for (int machines = chance.Below(4); machines > 0; --machines) {
    const std::string name = fmt::format("j{}", machines);
    const Seconds at = chance.Between(0, 40);
    schedule_.In(at, [this, name] { StandbyComes(name); });
    if (chance.Hits(0.15))
      schedule_.In(Seconds{at.value + chance.Between(0, 10).value}, [this, name] { StandbyLeaves(name); });
  }
}

// Two agents are out of reach, and of one of these nodes the ranks end: its machine goes down, which breaks its
// connections, or its agent had died and the starter has waited for another one. The agent of the other one comes back.
void Simulation::PlanLostAgents() {
  const int machine = SomeNode(), other = (machine + 1 + chance_.Below(plan_.nodes - 1)) % plan_.nodes;
  promises_.LoseFirst(cluster_.TokenOf(machine));
  const double begun = chance_.Between(16, 20).value;  // the standby is there
  const bool by_starter = chance_.Hits(0.5);
  const double ended =
      begun + (by_starter ? kWithoutAgent.value + chance_.Between(0, 1).value : chance_.Between(12, 75).value);
  const double away = by_starter ? begun + chance_.Between(16, 48).value : begun;
  const Seconds away_for{ended + chance_.Between(2, 14).value - away};
  schedule_.In(Seconds{away}, [=, this] {
    cluster_.Disturb();
    FallSilent(other, away_for);
  });
  schedule_.In(Seconds{by_starter ? begun : ended}, [=, this] { Cut(machine, kForGood); });
  schedule_.In(Seconds{ended}, [=, this] { Die(machine); });
}

// ---- ranks, machines, networks ----

void Simulation::BreakSomething() {
  if (!leads_ || finished_) return;
  const int machine = cluster_.MachineAt(SomeNode()), rank = chance_.Below(plan_.ranks_per_node);
  ++result_.faults;
  switch (chance_.Below(12)) {
    case 0:
    case 1:
      return Crash(machine, rank);
    case 2:
      Tell("a rank of node {} hangs", cluster_.NameOf(machine));
      return Count(cluster_.Hang(machine, rank));
    case 3:
      return Cut(machine, chance_.Hits(0.8) ? chance_.Between(0.05, 4) : chance_.Between(4, 8));
    case 4:
      return FallSilent(machine, chance_.Between(0.5, 8));
    case 5:
      return KillCoordinator();
    case 6:
      return FillDisk(machine, rank);
    case 7:
      return Corrupt(machine, rank);
    case 8:
      return AccuseMachine(machine);
    case 9:
      return DisturbNetwork(machine);
    case 10:
      return Spoil(machine, rank);
    default:
      cluster_.FailNextSpawn(machine);
      return Crash(machine, rank);
  }
}

void Simulation::Accuse(int machine) {
  promises_.Accuse(cluster_.TokenOf(machine));
  promises_.AddCause();
}

// Its inspection says that it is broken; some such machines can't end their ranks for a while.
void Simulation::AccuseMachine(int machine) {
  Tell("the machine of node {} says that it is broken", cluster_.NameOf(machine));
  if (!cluster_.IsDead(machine)) Accuse(machine);
  const bool stuck = chance_.Hits(0.4);
  const bool heals = chance_.Hits(0.3);
  cluster_.Alert(machine, AlertClass::kMachine, "gpu_xid", stuck ? Seconds{20} : Seconds{});
  if (heals) cluster_.ClearSoon(machine, "gpu_xid", chance_.Between(0.1, 5));
}

void Simulation::DisturbNetwork(int machine) {
  BreakNetwork(machine);
  cluster_.ClearSoon(machine, "link", Seconds{0.2});
  if (chance_.Hits(0.4)) return;
  schedule_.In(chance_.Between(0.5, 3), [this, machine] {
    if (!finished_) BreakNetwork(machine);
  });
}

// One alert accuses nobody.
void Simulation::BreakNetwork(int machine) {
  if (cluster_.IsDead(machine)) return;
  const bool again = ++network_alerts_[cluster_.TokenOf(machine)] > 1;
  Tell("the network of node {} is down{}", cluster_.NameOf(machine), again ? " again" : "");
  if (again) Accuse(machine);
  cluster_.Alert(machine, AlertClass::kNetwork, "link", {});
}

// It makes ranks crash, and only a probe can tell that it does.
void Simulation::Spoil(int machine, int rank) {
  Tell("the machine of node {} is broken, and does not know it", cluster_.NameOf(machine));
  promises_.Accuse(cluster_.TokenOf(machine));
  const Rung found_by = chance_.Hits(0.6) ? Rung::kDiagnose : Rung::kReplay;
  if (found_by == Rung::kReplay) promises_.Spoil(cluster_.TokenOf(machine));
  cluster_.Spoil(machine, found_by);
  Crash(machine, rank);
  for (int i = 0; i < 2; ++i)
    schedule_.In(chance_.Between(1, 8), [this, machine, rank] {
      if (!finished_) Crash(machine, rank);
    });
}

void Simulation::Count(bool broken) {
  if (broken) promises_.AddCause();
}

void Simulation::Crash(int machine, int rank) {
  Tell("a rank of node {} crashes", cluster_.NameOf(machine));
  Count(cluster_.Crash(machine, rank));
}

void Simulation::Cut(int machine, Seconds duration) {
  Tell("node {} is cut off for {:.1f} s", cluster_.NameOf(machine), duration.value);
  cluster_.Disturb();
  network_.Cut(machine, duration);
}

void Simulation::FallSilent(int machine, Seconds duration) {
  Tell("node {} falls silent for {:.1f} s", cluster_.NameOf(machine), duration.value);
  network_.Silence(machine, duration);
}

void Simulation::FillDisk(int machine, int rank) {
  Tell("the disk is full");
  disk_.full = true;
  schedule_.In(chance_.Between(0.1, 4), [this] { EmptyDisk(); });
  if (!chance_.Hits(0.5)) return;
  // What happens now is not written down, and then whoever knows it is gone.
  if (chance_.Hits(0.7)) Crash(machine, rank);
  schedule_.In(chance_.Between(0.1, 2), [this] { KillCoordinator(); });
}

void Simulation::Corrupt(int machine, int rank) {
  Tell("checkpoints of node {} are damaged", cluster_.NameOf(machine));
  cluster_.Corrupt(machine, rank);
  if (!chance_.Hits(0.5)) return;
  for (int i = 0; i < 5; ++i) cluster_.Corrupt(machine, rank);  // hardly any is left, and one is asked for
  Crash(machine, rank);
}

// The events that waited go in with the next one.
void Simulation::EmptyDisk() {
  disk_.full = false;
  if (leads_) Handle(ProgressSeen{state().epoch, state().progress});
}

void Simulation::Heal() {
  if (disk_.full) EmptyDisk();
  if (!node_lost_ && (!plan_.elastic || EverybodyIsHere())) cluster_.Settle();
}

// ---- nodes ----

// The node that leads is lost with the coordinator, which is another story.
void Simulation::LoseANode() {
  if (finished_) return;
  const int node = plan_.elastic && chance_.Hits(kFirstNode) ? 0 : SomeNode();
  if (node == state().spec.leading_node) return;
  const int machine = cluster_.MachineAt(node);
  ++result_.faults;
  node_lost_ = true;
  if (!chance_.Hits(0.3)) return Die(machine);
  Cut(machine, chance_.Between(20, 100));
  EndIfAlone(machine, schedule_.now());
}

void Simulation::Die(int machine) {
  Tell("node {} dies", cluster_.NameOf(machine));
  chance_.Hits(0.5) ? network_.Silence(machine, kForGood) : network_.Cut(machine, kForGood);
  if (cluster_.Die(machine)) promises_.LoseRanks(state());
}

// An agent without a coordinator, with ranks that do not step, ends them and itself.
void Simulation::EndIfAlone(int machine, Nanos since) {
  if (cluster_.IsDead(machine) || conductor_->Attends(cluster_.NodeOf(machine))) return;
  const Nanos end = std::max(since, cluster_.SteppedAt(machine)) + ToNanos(kWithoutAgent);
  if (schedule_.now() < end) return schedule_.At(end, [=, this] { EndIfAlone(machine, since); });
  Tell("node {} gives up", cluster_.NameOf(machine));
  if (cluster_.Die(machine)) promises_.LoseRanks(state());
  network_.Cut(machine, kForGood);
}

void Simulation::TroubleWhileCounting() {
  if (finished_ || !leads_) return;
  switch (counting_.Below(4)) {
    case 0:
      return LoseANode();
    case 1:
      return KillCoordinator();
    case 2:
      return Cut(cluster_.MachineAt(SomeNode()), chance_.Between(0.05, 4));
    default:
      return Crash(cluster_.MachineAt(SomeNode()), 0);
  }
}

// ---- users ----

// Each may take one restart of its own.
void Simulation::AskForUpdate(const UpdateAsked& asked) {
  if (finished_ || !leads_) return;
  Tell("an update is asked for");
  promises_.AddCause();
  Handle(asked);
}

void Simulation::AskStop() {
  if (finished_) return;
  const int node = SomeNode(), way = chance_.Below(3);
  if (std::exchange(stop_asked_, true) || way == 1) promises_.BeImpatient();
  Tell("a stop is asked for");
  if (way == 2) {  // a scheduler's
    for (int each = 0; each < cluster_.nodes(); ++each) AskStopAt(each, chance_.Between(0, 0.3));
    return;
  }
  AskStopAt(node, {});
  if (way == 1) AskStopAt(node, chance_.Between(0.2, 3));
}

// By way of a node, or of the coordinator itself if there is nobody at node 0.
void Simulation::AskStopUntilItEnds() {
  if (finished_) return;
  if (cluster_.IsDead(cluster_.MachineAt(0)) && leads_) {
    promises_.BeImpatient();
    Handle(StopAsked{SIGTERM});
  } else {
    AskStop();
  }
  schedule_.In(Seconds{10}, [this] { AskStopUntilItEnds(); });
}

void Simulation::AskStopAt(int node, Seconds delay) {
  schedule_.In(delay, [this, machine = cluster_.MachineAt(node)] {
    if (cluster_.IsDead(machine)) return;
    network_.ToCoordinator(machine, false, [this, machine] {
      if (const int asked = cluster_.NodeOf(machine); asked >= 0) HearStop(asked);
    });
  });
}

}  // namespace lockstep::control
