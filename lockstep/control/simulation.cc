#include "lockstep/control/simulation.h"

#include <algorithm>

#include "lockstep/control/simulation_run.h"

namespace lockstep::control {
namespace {

constexpr int kManySteps = 1000;  // an agent is away for more than a minute
constexpr double kDeadline = 300, kDeadlineOfOthers = 900;
constexpr double kTightBudget = 0.2, kLoadFirst = 0.12, kObserveOnly = 0.05, kStandby = 0.5, kDryRun = 0.08,
                 kCanAsk = 0.5, kUnseen = 0.06;
constexpr Seconds kStopWithin{1.5}, kStuckWithin{3}, kProbeWithin{2}, kReplayWithin{6}, kGrace{20};
// Of worlds that change.
constexpr double kRoomForMore = 0.4, kByTensors = 0.55, kBySaying = 0.2, kCutAnew = 0.5, kLeads = 0.3;

}  // namespace

Chance WorldsChance(const SimulationPlan& plan) { return Chance(plan.seed + 2'000'000'011); }

Worlds WorldsOf(const SimulationPlan& plan) {
  if (!plan.elastic) return {};
  Chance chance = WorldsChance(plan);
  Worlds worlds;
  worlds.most = std::max(2, plan.nodes + (chance.Hits(kRoomForMore) ? 1 + chance.Below(2) : 0));
  worlds.least = std::min(1 + chance.Below(plan.nodes), worlds.most - 1);
  worlds.alike =
      chance.Hits(kByTensors) ? Alike::kByTensors : (chance.Hits(kBySaying) ? Alike::kBySaying : Alike::kNot);
  if (worlds.alike == Alike::kNot && chance.Hits(kCutAnew)) worlds.alike = Alike::kCutAnew;
  return worlds;
}

// By a chance of its own: without it all else stays as it is.
Telling TellingOf(const SimulationPlan& plan) {
  Chance chance(plan.seed + 7'000'000'001);
  if (plan.elastic || plan.agents_lost || plan.nodes >= kMany || !chance.Hits(kUnseen)) return Telling::kSteps;
  return chance.Hits(0.5) ? Telling::kNone : Telling::kLate;
}

Simulation::Simulation(const SimulationPlan& plan)
    : plan_(plan),
      chance_(plan.seed),
      counting_(plan.seed + 5'000'000'029),
      faltering_(plan.seed + 13'000'000'027),
      clock_(schedule_),
      network_(plan.nodes, schedule_, chance_,
               {.connected = [this](int machine) { Joined(machine); },
                .lost = [this](int machine, const std::string& why, Seconds silence) { Lost(machine, why, silence); }}),
      cluster_(plan, WorldsOf(plan), TellingOf(plan), plan.agents_lost ? kManySteps : 60 + chance_.Below(120),
               schedule_, chance_, [this](int machine, Said said) { Up(machine, std::move(said)); }),
      promises_(schedule_, cluster_) {}

SimulationResult Simulation::Run() {
  Begin();
  const bool usual = !plan_.elastic && TellingOf(plan_) == Telling::kSteps;
  const Nanos deadline = ToNanos(Seconds{usual ? kDeadline : kDeadlineOfOthers});
  while (promises_.broken().empty() && !finished_ && schedule_.now() < deadline && schedule_.Next()) Check();
  CheckEnd();
  result_.broken = promises_.broken();
  result_.virtual_s = ToSeconds(schedule_.now()).value;
  return result_;
}

// ---- how a job begins ----

void Simulation::Begin() {
  JobSpec spec;
  spec.ranks = plan_.nodes * plan_.ranks_per_node;
  spec.grace = kGrace;
  const int max_restarts = chance_.Hits(kTightBudget) ? 1 + chance_.Below(2) : 1000;
  spec.max_restarts = plan_.mutant == Mutant::kNoBudget ? 1'000'000 : max_restarts;
  spec.observe_only = chance_.Hits(kObserveOnly);
  spec.load_first = chance_.Hits(kLoadFirst) && !plan_.agents_lost && TellingOf(plan_) != Telling::kNone;
  if (spec.load_first) cluster_.FollowEarlierRuns(spec.first_epoch = EpochId(4));
  for (int node = 0; node < plan_.nodes; ++node)
    spec.nodes.push_back({std::to_string(node), plan_.ranks_per_node, fmt::format("token {}", node)});
  spec.standbys = chance_.Hits(kStandby) ? 1 + chance_.Below(3) : 0;
  spec.can_ask = chance_.Hits(kCanAsk);
  spec.policy = SomePolicy();
  if (plan_.elastic) LetTheWorldChange(spec);
  if (plan_.agents_lost) LetAStandbyHelp(spec);
  promises_.Begin(spec, max_restarts);
  if (plan_.mutant == Mutant::kNoCap) spec.policy.evictions_per_hour = 1000;
  if (plan_.mutant == Mutant::kNoFloor) spec.policy.least_machines = 0;
  if (plan_.mutant == Mutant::kNoDryRun) spec.policy.dry_run = false;
  if (plan_.mutant == Mutant::kOneAlert) spec.policy.network_alerts = 1;
  if (plan_.mutant == Mutant::kNoLeast) spec.least_nodes = 1;
  coordinator_ = std::make_unique<Coordinator>(disk_, clock_);
  leads_ = true;
  Lead(Decide(JobStarted{spec}));
  for (int node = 0; node < plan_.nodes; ++node) network_.Connect(node);
  StandbysCome(15);
  plan_.agents_lost ? PlanLostAgents() : PlanFaults();
  Tick();
  if (TellingOf(plan_) != Telling::kSteps) LookForTheUnseen();
  AskForMachines();
}

Policy Simulation::SomePolicy() {
  Policy policy;
  policy.dry_run = chance_.Hits(kDryRun);
  policy.evictions_per_hour = chance_.Below(4);
  policy.least_machines = chance_.Hits(0.2) ? plan_.nodes + chance_.Below(3) : 0;
  policy.stop_within = kStopWithin;
  policy.stuck_within = kStuckWithin;
  policy.diagnose_within = kProbeWithin;
  policy.replay_within = kReplayWithin;
  policy.wait_for_node = chance_.Between(1, 60);
  return policy;
}

void Simulation::LetTheWorldChange(JobSpec& spec) {
  Chance chance = WorldsChance(plan_);
  const Worlds worlds = WorldsOf(plan_);
  spec.least_nodes = worlds.least;
  spec.most_nodes = worlds.most;
  if (chance.Hits(kLeads)) spec.leading_node = chance.Below(plan_.nodes);
  spec.standbys = std::max(0, spec.standbys - 1);
  spec.policy.grow_after = chance.Between(0.5, 8);
  spec.policy.grow_every = chance.Between(1, 30);
}

void Simulation::LetAStandbyHelp(JobSpec& spec) {
  spec.observe_only = spec.policy.dry_run = false;
  spec.standbys = 1;
  spec.policy.wait_for_node = Seconds{60};
}

// ---- what must hold ----

// Nobody leaves while others than those that are to may be gone, too. Looked for from where one was found last.
bool Simulation::AwaitsOthers() {
  if (state().mode != Mode::kStopping) return false;
  const std::vector<Evictee>& leave = state().fault.plan.evict;
  const int nodes = conductor_->nodes(), first = awaited_;
  for (int i = 0; i < nodes; ++i) {
    awaited_ = (first + i) % nodes;
    const bool leaves = std::ranges::find(leave, awaited_, &Evictee::node) != leave.end();
    if (!leaves && !conductor_->fleet().HasStopped(awaited_)) return true;
  }
  return false;
}

void Simulation::Check() {
  const bool news = std::exchange(news_, false);
  if (news) {
    result_.restarts = state().restarts;
    result_.replay_evictions = static_cast<int>(std::ranges::count(state().evictions, Role::kReplay, &Eviction::role));
    excused_ = !EverybodyIsHere() || AwaitsOthers();
  }
  if (excused_ || schedule_.now() < caught_up_at_) promises_.Excuse();
  if (leads_ && !coordinator_->holds() && conductor_->nodes() != cluster_.nodes())
    promises_.Break(fmt::format("{} nodes are led, and there are {}", conductor_->nodes(), cluster_.nodes()));
  promises_.Check(state(), news);
}

void Simulation::CheckEnd() {
  promises_.CheckEnd(state());
  for (int machine = 0; machine < cluster_.machines(); ++machine) {
    const int node = cluster_.NodeOf(machine);
    const bool is_given_up =
        (node >= 0 && conductor_->IsGone(node)) || cluster_.MayRunOn(machine) || schedule_.now() < killed_by_[machine];
    if (cluster_.HasRanks(machine) && !is_given_up)
      promises_.Break(fmt::format("the job is over, and ranks of node {} run on", cluster_.NameOf(machine)));
  }
}

SimulationResult Simulate(const SimulationPlan& plan) { return Simulation(plan).Run(); }

}  // namespace lockstep::control
