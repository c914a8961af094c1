// Who takes part in a simulated job: standbys and machines of a scheduler that come and go, and whose place another one
// takes or nobody.
#include <algorithm>

#include "lockstep/control/needs.h"
#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr Seconds kAskForMachines{0.5};
constexpr double kTroubleWhileCounting = 0.3, kFalters = 0.3, kRecovers = 0.5;
constexpr char kStandbysFault[] = "disk_full";

}  // namespace

// ---- machines come ----

// Those that have had no place yet, within so much time.
void Simulation::StandbysCome(double within) {
  for (int i = 0; i < state().spec.standbys; ++i)
    schedule_.In(chance_.Between(0, within), [this, name = fmt::format("s{}", i)] { StandbyComes(name); });
}

void Simulation::StandbyComes(const std::string& name) {
  if (!leads_) return;
  const NodeSpec standby{name, plan_.ranks_per_node, "token " + name};
  if (plan_.elastic && !HasRoom()) return;
  const auto is_it = [&](const auto& had) { return had == standby.token; };
  const bool sits = std::ranges::any_of(state().spec.nodes, is_it, &NodeSpec::token);
  const bool sat = std::ranges::any_of(state().evictions, is_it, [](const Eviction& e) { return e.node.token; });
  if (sits || sat) return;
  Handle(StandbyCame{standby});
  const bool broken = faltering_since_.contains(standby.token);
  if (broken) schedule_.In(faltering_.Between(0, 0.2), [=, this] { SayOfStandby(standby.token, false); });
  if (!broken && faltering_.Hits(kFalters))
    schedule_.In(faltering_.Between(0, 10), [=, this] { StandbyFalters(standby.token); });
}

// As control/roster.cc admits them.
bool Simulation::HasRoom() const {
  const JobSpec& spec = state().spec;
  const int room = std::max(0, spec.most_nodes - static_cast<int>(spec.nodes.size()));
  return CountFit(state()) < spec.standbys + NeedsOf(state()).machines + room;
}

void Simulation::StandbyLeaves(const std::string& name) {
  const auto is_it = [&](const NodeSpec& standby) { return standby.name == name; };
  if (!finished_ && leads_ && std::ranges::any_of(state().standbys, is_it)) Handle(StandbyLeft{"token " + name});
}

// Its inspection says so, and says it again to whoever leads next.
void Simulation::StandbyFalters(const std::string& token) {
  if (finished_ || cluster_.MachineOf(token) >= 0) return;
  Tell("the standby with {} breaks, and says so", token);
  faltering_since_[token] = schedule_.now();
  SayOfStandby(token, false);
  if (faltering_.Hits(kRecovers)) schedule_.In(faltering_.Between(0.1, 8), [=, this] { StandbyRecovers(token); });
}

void Simulation::StandbyRecovers(const std::string& token) {
  SayOfStandby(token, true);
  faltering_since_.erase(token);
  if (const int machine = cluster_.MachineOf(token); machine >= 0) cluster_.ClearSoon(machine, kStandbysFault, {});
}

void Simulation::SayOfStandby(const std::string& token, bool cleared) {
  const bool stands_by =
      leads_ && std::ranges::find(state().standbys, token, &NodeSpec::token) != state().standbys.end();
  if (!stands_by || finished_) return;
  Handle(Alerted{-1, kStandbysFault, AlertClass::kMachine, "", "it says so", faltering_since_[token], cleared, token});
}

// It has a place now, and is to be evicted from it.
void Simulation::SayAsNode(int machine) {
  if (!faltering_since_.contains(cluster_.TokenOf(machine))) return;
  Accuse(machine);
  cluster_.Alert(machine, AlertClass::kMachine, kStandbysFault, {});
}

// As node/scheduler.cc has it done; a machine that comes is a standby like any other. Some never come.
void Simulation::AskForMachines() {
  schedule_.In(kAskForMachines, [this] { AskForMachines(); });
  if (!leads_) return;
  for (; machines_asked_ < NeedsOf(state()).machines; ++machines_asked_)
    schedule_.In(chance_.Hits(0.7) ? chance_.Between(0.5, 40) : Seconds{1e6}, [this] {
      --machines_asked_;
      if (!leads_ || NeedsOf(state()).machines == 0) return;  // it is refused
      StandbyComes(fmt::format("asked{}", ++machines_came_));
    });
}

// ---- the world changes ----

// A standby has the place of this node now.
void Simulation::Seat(int node, const NodeSpec& standby) {
  Tell("the standby takes the place of node {}", node);
  const int old = cluster_.MachineAt(node);
  promises_.Replace(cluster_.IsDead(old));
  cluster_.Seat(node, standby);
  network_.Refuse(old);
  network_.Know(cluster_.machines());
  SayAsNode(cluster_.MachineAt(node));
  ConnectSoon(cluster_.MachineAt(node));
}

// Nobody has the place of this node.
void Simulation::Vacate(int node) {
  const int machine = cluster_.MachineAt(node);
  Tell("the job goes on without node {}", NameOf(node));
  promises_.Replace(cluster_.IsDead(machine));
  cluster_.Expel(machine);
  network_.Refuse(machine);
}

void Simulation::Resize(const std::vector<int>& from) {
  Tell("the world has {} nodes from the coming epoch on, and had {}", from.size(), cluster_.nodes());
  ++result_.worlds[static_cast<int>(from.size()) > cluster_.nodes() ? "larger" : "smaller"];
  cluster_.Resize(from, state().spec.nodes);
  network_.Know(cluster_.machines());
  for (int node = 0; node < cluster_.nodes(); ++node) {
    const bool joins = from[static_cast<size_t>(node)] < 0;
    if (joins) SayAsNode(cluster_.MachineAt(node));
    joins ? ConnectSoon(cluster_.MachineAt(node)) : Welcome(node);
  }
  if (counting_.Hits(kTroubleWhileCounting))
    schedule_.In(counting_.Between(0, 0.6), [this] { TroubleWhileCounting(); });
}

void Simulation::ConnectSoon(int machine) {
  schedule_.In(chance_.Between(0, 0.2), [this, machine] { network_.Connect(machine); });
}

}  // namespace lockstep::control
