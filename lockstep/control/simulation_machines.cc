// Who takes part in a simulated job: standbys and machines of a scheduler that come and go, nodes that are gone, whose
// place another one takes or nobody, and how many there are then.
#include <algorithm>

#include "lockstep/control/needs.h"
#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

// As in node/head.cc.
constexpr Seconds kStillAdvances{10}, kLookForGone{0.5};
constexpr double kTroubleWhileCounting = 0.3;

}  // namespace

// ---- machines come ----

// Those that have had no place yet, within so much time.
void Simulation::StandbysCome(double within) {
  for (int i = 0; i < state().spec.standbys; ++i)
    schedule_.In(chance_.Between(0, within), [this, name = fmt::format("s{}", i)] { StandbyComes(name); });
}

void Simulation::StandbyComes(const std::string& name) {
  if (!coordinator_) return;
  const NodeSpec standby{name, plan_.ranks_per_node, "token " + name};
  if (plan_.elastic && !HasRoom()) return;
  const auto is_it = [&](const auto& had) { return had == standby.token; };
  const bool sits = std::ranges::any_of(state().spec.nodes, is_it, &NodeSpec::token);
  const bool sat = std::ranges::any_of(state().evictions, is_it, [](const Eviction& e) { return e.node.token; });
  if (!sits && !sat) Handle(StandbyCame{standby});
  if (coordinator_ && stuck_for_ == state().epoch) LookForTheStuck(state().epoch);
}

// As control/roster.cc admits them.
bool Simulation::HasRoom() const {
  const JobSpec& spec = state().spec;
  const int room = std::max(0, spec.most_nodes - static_cast<int>(spec.nodes.size()));
  return static_cast<int>(state().standbys.size()) < spec.standbys + NeedsOf(state()).machines + room;
}

void Simulation::StandbyLeaves(const std::string& name) {
  const auto is_it = [&](const NodeSpec& standby) { return standby.name == name; };
  if (!finished_ && coordinator_ && std::ranges::any_of(state().standbys, is_it)) Handle(StandbyLeft{"token " + name});
}

// As node/scheduler.cc has it done; a machine that comes is a standby like any other. Some never come.
void Simulation::AskForMachines() {
  schedule_.In(kLookForGone, [this] { AskForMachines(); });
  if (!coordinator_) return;
  for (; machines_asked_ < NeedsOf(state()).machines; ++machines_asked_)
    schedule_.In(chance_.Hits(0.7) ? chance_.Between(0.5, 40) : Seconds{1e6}, [this] {
      --machines_asked_;
      if (!coordinator_ || NeedsOf(state()).machines == 0) return;  // it is refused
      StandbyComes(fmt::format("asked{}", ++machines_came_));
    });
}

// ---- nodes are gone ----

// While the others step, its ranks step with them: only its agent is away.
void Simulation::LookForTheGone() {
  schedule_.In(kLookForGone, [this] { LookForTheGone(); });
  if (coordinator_ && !coordinator_->Handle(Tick{}).ok()) promises_.Break("the journal is not ours");
  if (const std::optional<int> due = UpdateThatIsDue(state(), schedule_.now()); due && coordinator_)
    Handle(UpdateDue{*due});
  GrowIfDue();
  const bool only_looks_on = state().spec.observe_only && state().mode != Mode::kFinishing;
  if (!coordinator_ || only_looks_on || schedule_.now() - advanced_at_ < ToNanos(kStillAdvances)) return;
  for (int node = 0; node < cluster_.nodes(); ++node) {
    const Nanos since = Of(node).lost_since;
    if (since.value != 0 && schedule_.now() >= GoneAt(state(), node, since)) TakeForGone(node);
  }
}

void Simulation::TakeForGone(int node) {
  const Nanos since = std::exchange(Change(node).lost_since, Nanos{});
  const std::vector<NodeSpec> before = state().spec.nodes;
  if (state().awaited.contains(node) && plan_.mutant == Mutant::kAwaitForever) return;
  if (state().spec.can_ask && !state().lost_agents.contains(node))
    Handle(AgentLost{node, NameOf(node), "it never came", since});
  Handle(AgentGone{node, fmt::format("node {} is lost", node)});
  if (!coordinator_ || state().spec.nodes != before) return;  // this number may be another one's now
  if (state().awaited.contains(node)) Change(node).lost_since = since;
  if (state().mode != Mode::kFinishing) return;
  Change(node).gone = true;
  if (plan_.mutant == Mutant::kGoneRunsOn) return;
  for (const EventBody& event : fleet_->Gone(node)) Handle(event);
}

void Simulation::GrowIfDue() {
  const bool is_kept = fleet_->commit().point.epoch == state().epoch;
  if (coordinator_ && is_kept && IsGrowthDue(state(), schedule_.now())) Handle(GrowthDue{state().epoch});
}

// ---- the world changes ----

// A standby has the place of this node now.
void Simulation::Seat(int node, const NodeSpec& standby) {
  Tell("the standby takes the place of node {}", node);
  const int old = cluster_.MachineAt(node);
  promises_.Replace(cluster_.IsDead(old));
  cluster_.Seat(node, standby);
  network_.Refuse(old);
  KnowMachines();
  replay_->Lost(node);
  if (plan_.mutant != Mutant::kGoneRunsOn) HearLater(fleet_->Gone(node));
  ConnectSoon(cluster_.MachineAt(node));
}

// Nobody has the place of this node.
void Simulation::Vacate(int node) {
  const int machine = cluster_.MachineAt(node);
  Tell("the job goes on without node {}", NameOf(node));
  promises_.Replace(cluster_.IsDead(machine));
  cluster_.Expel(machine);
  network_.Refuse(machine);
  Change(node) = {.gone = true};
  if (plan_.mutant == Mutant::kVacantRunsOn) return;
  HearLater(fleet_->Vacate(node));
}

void Simulation::Resize(const std::vector<int>& from) {
  Tell("the world has {} nodes from the coming epoch on, and had {}", from.size(), cluster_.nodes());
  ++result_.worlds[static_cast<int>(from.size()) > cluster_.nodes() ? "larger" : "smaller"];
  cluster_.Resize(from, state().spec.nodes);
  KnowMachines();
  MakeFleet(state().epoch, false);
  for (int node = 0; node < cluster_.nodes(); ++node)
    from[static_cast<size_t>(node)] >= 0 ? Welcome(node) : ConnectSoon(cluster_.MachineAt(node));
  if (counting_.Hits(kTroubleWhileCounting))
    schedule_.In(counting_.Between(0, 0.6), [this] { TroubleWhileCounting(); });
}

// Those that are new have not been heard yet.
void Simulation::KnowMachines() {
  here_.reset();
  network_.Know(cluster_.machines());
  while (static_cast<int>(attendants_.size()) < cluster_.machines())
    attendants_.push_back({.lost_since = schedule_.now()});
}

void Simulation::ConnectSoon(int machine) {
  schedule_.In(chance_.Between(0, 0.2), [this, machine] { network_.Connect(machine); });
}

}  // namespace lockstep::control
