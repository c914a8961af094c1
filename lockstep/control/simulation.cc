#include "lockstep/control/simulation.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <memory>

#include "lockstep/control/coordinator.h"
#include "lockstep/control/memory_journal.h"
#include "lockstep/control/needs.h"
#include "lockstep/control/replay_search.h"
#include "lockstep/control/simulation_cluster.h"
#include "lockstep/control/simulation_network.h"
#include "lockstep/control/simulation_promises.h"

namespace lockstep::control {
namespace {

constexpr double kFaultsFrom = 0.02, kFaultsUntil = 12, kHealed = 21, kDeadline = 300;
constexpr double kTightBudget = 0.2, kLoadFirst = 0.12, kObserveOnly = 0.05, kStop = 0.2, kNodeLost = 0.08,
                 kStandby = 0.5, kDryRun = 0.08, kUpdates = 0.15, kCanAsk = 0.5;
constexpr Seconds kStopWithin{1.5}, kStuckWithin{3}, kProbeWithin{2}, kReplayWithin{6}, kLookAtReplay{0.1};
// As in node/head.cc and node/run.cc.
constexpr Seconds kStillAdvances{10}, kAdoption{60};
constexpr Seconds kLookForGone{0.5}, kGrace{20};

// The coordinator's process, and what breaks.
class Simulation {
 public:
  explicit Simulation(const SimulationPlan& plan)
      : plan_(plan),
        chance_(plan.seed),
        clock_(schedule_),
        network_(plan.nodes, schedule_, chance_,
                 {.connected = [this](int node) { cluster_.Reconnect(node); },
                  .lost = [this](int node, const std::string& why) { Lost(node, why); }}),
        cluster_(plan, 60 + chance_.Below(120), schedule_, chance_,
                 [this](int node, Said said) { Up(node, std::move(said)); }),
        promises_(schedule_, cluster_) {}

  SimulationResult Run() {
    Begin();
    const Nanos deadline = ToNanos(Seconds{kDeadline});
    while (promises_.broken().empty() && !finished_ && schedule_.now() < deadline && schedule_.Next()) Check();
    CheckEnd();
    result_.broken = promises_.broken();
    result_.virtual_s = ToSeconds(schedule_.now()).value;
    return result_;
  }

 private:
  // What the coordinator knows of an agent.
  struct Attendant {
    bool attends = false;  // it has said all that it knows
    bool asked_stop = false;
    bool gone = false;
    Nanos lost_since;  // 0: it is not lost
  };

  void Begin() {
    JobSpec spec;
    spec.ranks = plan_.nodes * plan_.ranks_per_node;
    spec.grace = kGrace;
    const int max_restarts = chance_.Hits(kTightBudget) ? 1 + chance_.Below(2) : 1000;
    spec.max_restarts = plan_.mutant == Mutant::kNoBudget ? 1'000'000 : max_restarts;
    spec.observe_only = chance_.Hits(kObserveOnly);
    spec.load_first = chance_.Hits(kLoadFirst);
    if (spec.load_first) cluster_.FollowEarlierRuns(spec.first_epoch = EpochId(4));
    for (int node = 0; node < plan_.nodes; ++node)
      spec.nodes.push_back({std::to_string(node), plan_.ranks_per_node, fmt::format("token {}", node)});
    spec.standbys = chance_.Hits(kStandby) ? 1 + chance_.Below(3) : 0;
    spec.can_ask = chance_.Hits(kCanAsk);
    spec.policy = SomePolicy();
    promises_.Begin(spec, max_restarts);
    if (plan_.mutant == Mutant::kNoCap) spec.policy.evictions_per_hour = 1000;
    if (plan_.mutant == Mutant::kNoFloor) spec.policy.least_machines = 0;
    if (plan_.mutant == Mutant::kNoDryRun) spec.policy.dry_run = false;
    if (plan_.mutant == Mutant::kOneAlert) spec.policy.network_alerts = 1;
    coordinator_ = std::make_unique<Coordinator>(disk_, clock_);
    BeginToListen(EpochId(spec.first_epoch.value() - 1));
    for (int node = 0; node < plan_.nodes; ++node) network_.Connect(node);
    Handle(JobStarted{spec});
    StandbysCome(15);
    PlanFaults();
    LookForTheGone();
    AskForMachines();
  }

  Policy SomePolicy() {
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

  // Those that have had no place yet, within so much time.
  void StandbysCome(double within) {
    for (int i = 0; i < state().spec.standbys; ++i)
      schedule_.In(chance_.Between(0, within), [this, name = fmt::format("s{}", i)] { StandbyComes(name); });
  }

  void StandbyComes(const std::string& name) {
    if (!coordinator_) return;
    const NodeSpec standby{name, plan_.ranks_per_node, "token " + name};
    const auto is_it = [&](const auto& had) { return had == standby.token; };
    const bool sits = std::ranges::any_of(state().spec.nodes, is_it, &NodeSpec::token);
    const bool sat = std::ranges::any_of(state().evictions, is_it, [](const Eviction& e) { return e.node.token; });
    if (!sits && !sat) Handle(StandbyCame{standby});
  }

  void PlanFaults() {
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
    if (state().spec.observe_only) schedule_.In(chance_.Between(20, 40), [this] { AskStopUntilItEnds(); });
    // What happens in the first moments, too, may never be written down.
    if (state().spec.load_first && chance_.Hits(0.3))
      schedule_.In(chance_.Between(kFaultsFrom, 0.2), [this] { FillDisk(chance_.Below(plan_.nodes), 0); });
    schedule_.In(Seconds{kHealed}, [this] { Heal(); });
  }

  // By chances of their own: without them all else stays as it is.
  void PlanUpdates() {
    Chance chance(plan_.seed + 1'000'000'007);
    if (!chance.Hits(kUpdates)) return;
    for (int i = chance.Below(3); i >= 0; --i) {
      UpdateAsked asked{.env = {{"N", std::to_string(i)}}, .now = chance.Hits(0.6), .within = chance.Between(0, 10)};
      if (chance.Hits(0.7)) asked.code = asked.hash = fmt::format("code {}", i);
      schedule_.In(chance.Between(kFaultsFrom, kFaultsUntil), [this, asked] { AskForUpdate(asked); });
    }
  }

  // Each may take one restart of its own.
  void AskForUpdate(const UpdateAsked& asked) {
    if (finished_ || !coordinator_) return;
    Tell("an update is asked for");
    promises_.AddCause();
    Handle(asked);
  }

  // ---- the network ----

  // Facts may come twice. That all was said is true of one stream.
  void Up(int node, Said said) {
    const bool may_repeat = !std::holds_alternative<AllSaid>(said);
    network_.ToCoordinator(node, may_repeat, [this, node, machine = cluster_.machine(node), said = std::move(said)] {
      const bool has_the_place = machine == cluster_.machine(node);
      if (coordinator_ && has_the_place) std::visit([&](const auto& body) { Hear(node, body); }, said);
    });
  }

  // An agent that does not attend is told what is pending when it does.
  // Commands are idempotent; of questions only the newest stands.
  void Down(int node, const Told& told) {
    const bool may_repeat = !std::holds_alternative<ChooseOnDisk>(told);
    if (!Of(node).attends) return;
    network_.ToAgent(node, may_repeat, [this, node, told, machine = cluster_.machine(node)] {
      if (machine == cluster_.machine(node)) cluster_.Tell(node, told);
    });
  }

  void DownAll(const Told& told) {
    for (int node = 0; node < plan_.nodes; ++node) Down(node, told);
  }

  // ---- the coordinator hears ----

  void Hear(int node, const EventBody& said) {
    if (const auto* seen = std::get_if<ProgressSeen>(&said); seen && seen->progress.step_end > newest_step_end_) {
      newest_step_end_ = seen->progress.step_end;
      advanced_at_ = schedule_.now();
    }
    for (const EventBody& event : Filtered(node, said)) Handle(event);
  }

  std::vector<EventBody> Filtered(int node, EventBody said) {
    const bool first_counts = plan_.mutant == Mutant::kFirstNodeStopped && std::holds_alternative<EpochStopped>(said);
    if (first_counts) return {said};
    if (plan_.mutant == Mutant::kNoFence)
      std::visit(
          [&](auto& body) {
            if constexpr (requires { body.epoch; }) body.epoch = state().epoch;
          },
          said);
    if (auto* alert = std::get_if<Alerted>(&said); alert && plan_.mutant == Mutant::kWrongNode)
      alert->node = (alert->node + 1) % plan_.nodes;
    if (plan_.mutant == Mutant::kMixedCode && std::holds_alternative<CodeKept>(said)) return {said};
    const bool progress = std::holds_alternative<ProgressSeen>(said) || std::holds_alternative<CaughtUp>(said);
    if (progress && plan_.mutant == Mutant::kNeverCaughtUp) return {};
    return fleet_->Hear(node, said);
  }

  void Hear(int node, const RestoreFound& found) {
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

  void Hear(int node, const KeepsAt& where) { fleet_->Hear(node, where); }

  void Hear(int node, const Holding& holding) {
    fleet_->Hear(node, holding);
    if (const std::optional<Commit> news = fleet_->CommitNews()) DownAll(*news);
  }

  void Hear(int node, const Samples& samples) { fleet_->Hear(node, samples); }
  void Hear(int, const StoreAt&) {}
  void Hear(int, const CommunicationSeen&) {}  // simulated ranks have no collectors
  void Hear(int, const StacksSeen&) {}         // nor stacks
  void Hear(int, const Observed&) {}
  void Hear(int, const FlushWanted&) {}
  void Hear(int, const PartWritten&) {}
  void Hear(int, const DiskDone&) {}

  void Hear(int node, const ReplayReady& ready) {
    if (!replay_) return;
    replay_->Hear(node, ready, schedule_.now());
    TellReplay();
  }

  void Hear(int node, const ReplayEnded& ended) {
    if (!replay_) return;
    replay_->Hear(node, ended, schedule_.now());
    TellReplay();
  }

  void Hear(int node, const AllSaid& said) {
    Of(node).attends = true;
    Of(node).lost_since = Nanos{};
    if (state().lost_agents.contains(node) && plan_.mutant != Mutant::kNeverBack) Handle(AgentBack{node});
    if (said.epoch > state().epoch && plan_.mutant != Mutant::kTrustJournal) Handle(JournalBehind{said.epoch});
    if (plan_.mutant == Mutant::kForgetPending) return;
    Down(node, fleet_->commit());
    if (const std::optional<Version> version = VersionToCopy(state())) Down(node, Command(KeepCode{*version}));
    for (const Command& command : PendingCommands(state())) Down(node, Asked(node, command));
  }

  void Lost(int node, const std::string& why) {
    if (!Of(node).attends) return;
    Of(node).attends = false;
    Of(node).lost_since = schedule_.now();
    fleet_->Away(node);
    Handle(AgentLost{node, std::to_string(node), why, schedule_.now()});
  }

  // A scheduler that ends a job signals every node: only a node that asks for the second time means "at once".
  void HearStop(int node) {
    const bool first = !std::exchange(Of(node).asked_stop, true);
    const bool ending = state().mode == Mode::kFinishing;
    if (ending && first && plan_.mutant != Mutant::kStopPerNode) return;
    Handle(StopAsked{SIGTERM});
  }

  // While the others step, its ranks step with them: only its agent is away.
  void LookForTheGone() {
    schedule_.In(kLookForGone, [this] { LookForTheGone(); });
    if (const std::optional<int> due = UpdateThatIsDue(state(), schedule_.now()); due && coordinator_)
      Handle(UpdateDue{*due});
    const bool only_looks_on = state().spec.observe_only && state().mode != Mode::kFinishing;
    if (!coordinator_ || only_looks_on || schedule_.now() - advanced_at_ < ToNanos(kStillAdvances)) return;
    for (int node = 0; node < plan_.nodes; ++node) {
      const Nanos since = Of(node).lost_since;
      if (since.value != 0 && schedule_.now() >= GoneAt(state(), node, since)) TakeForGone(node);
    }
  }

  // As node/scheduler.cc has it done; a machine that comes is a standby like any other. Some never come.
  void AskForMachines() {
    schedule_.In(kLookForGone, [this] { AskForMachines(); });
    if (!coordinator_) return;
    for (; machines_asked_ < NeedsOf(state()).machines; ++machines_asked_)
      schedule_.In(chance_.Hits(0.7) ? chance_.Between(0.5, 40) : Seconds{1e6}, [this] {
        --machines_asked_;
        if (!coordinator_ || NeedsOf(state()).machines == 0) return;  // it is refused
        StandbyComes(fmt::format("asked{}", ++machines_came_));
      });
  }

  void TakeForGone(int node) {
    const Nanos since = std::exchange(Of(node).lost_since, Nanos{});
    if (state().awaited.contains(node) && plan_.mutant == Mutant::kAwaitForever) return;
    if (state().spec.can_ask && !state().lost_agents.contains(node))
      Handle(AgentLost{node, std::to_string(node), "it never came", since});
    Handle(AgentGone{node, fmt::format("node {} is lost", node)});
    if (state().awaited.contains(node)) Of(node).lost_since = since;
    if (state().mode != Mode::kFinishing) return;
    Of(node).gone = true;
    if (plan_.mutant == Mutant::kGoneRunsOn) return;
    for (const EventBody& event : fleet_->Gone(node)) Handle(event);
  }

  // A standby has the place of this node now.
  void Seat(int node) {
    Tell("the standby takes the place of node {}", node);
    promises_.Replace(cluster_.IsDead(node));
    cluster_.Replace(node, state().spec.nodes[static_cast<size_t>(node)].name);
    Of(node) = {};
    Of(node).lost_since = schedule_.now();
    if (replay_) replay_->Lost(node);
    if (plan_.mutant != Mutant::kGoneRunsOn)
      for (const EventBody& event : fleet_->Gone(node)) Handle(event);
    schedule_.In(chance_.Between(0, 0.2), [this, node] { network_.Replace(node); });
  }

  // ---- the coordinator decides ----

  void Handle(const EventBody& body) {
    promises_.Hear(state(), body);
    if (IsSwallowed(body)) return;
    const Mode before = state().mode;
    const std::string was = ModeText();
    const auto commands = coordinator_->Handle(body);
    if (!commands.ok()) return promises_.Break(Message(commands.status()));
    if (!std::holds_alternative<ProgressSeen>(body)) Tell("{} in {}", EventText(body), was);
    if (before != state().mode || was != ModeText()) NoteTransition(was);
    Carry(*commands);
    LeaveReplay();
  }

  bool IsSwallowed(const EventBody& body) const {
    const bool stop = std::holds_alternative<StopAsked>(body);
    if (stop && plan_.mutant == Mutant::kDeafToStop) return state().mode == Mode::kStopping;
    if (stop && plan_.mutant == Mutant::kStopOnce) return state().mode == Mode::kFinishing;
    return std::holds_alternative<AgentGone>(body) && plan_.mutant == Mutant::kNeverGone;
  }

  std::string ModeText() const { return state().epoch.value() == 0 ? "none" : ModeName(state().mode); }

  void NoteTransition(const std::string& was) {
    ++result_.transitions[fmt::format("{} -> {}", was, ModeText())];
    ++result_.modes[ModeText()];
    Tell("{} -> {}, epoch {}", was, ModeText(), state().epoch.value());
  }

  void Carry(const std::vector<Command>& commands) {
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
      if (const auto* stop = std::get_if<WaitForStop>(&command); stop && plan_.mutant != Mutant::kStopForever) {
        schedule_.In(stop->at_most, [this, epoch = stop->epoch] {
          if (coordinator_) Handle(StopOverdue{epoch, {}, fleet_->Unstopped()});
        });
      }
      if (const auto* probe = std::get_if<Probe>(&command)) {
        Ask(*probe);
        continue;
      }
      if (const auto* seat = std::get_if<control::Seat>(&command)) Seat(seat->node);
      if (std::holds_alternative<Finish>(command)) finished_ = true;
      DownAll(command);
    }
  }

  void LookForTheStuck(EpochId epoch) {
    if (coordinator_ && state().mode == Mode::kStopping && state().epoch == epoch)
      Handle(StopOverdue{epoch, fleet_->Unstopped()});
  }

  // As node/head_replay.cc.
  void Ask(const Probe& probe) {
    if (probe.rung == Rung::kReplay) {
      ++result_.replays;
      const auto id = static_cast<uint64_t>(schedule_.now().value);
      ReplayQuestion question = QuestionOf(state(), probe, id);
      if (plan_.mutant == Mutant::kReplayOfAnother)
        std::rotate(question.nodes.begin(), question.nodes.begin() + 1, question.nodes.end());
      replay_ = std::make_unique<ReplaySearch>(std::move(question), schedule_.now());
      LookAtReplay(id);
    } else if (plan_.mutant != Mutant::kProbeForever) {
      schedule_.In(probe.at_most, [this, probe] { EndProbe(probe); });
    }
    for (int node = 0; node < plan_.nodes; ++node) Down(node, Asked(node, probe));
  }

  Told Asked(int node, const Command& command) const {
    const auto* probe = std::get_if<Probe>(&command);
    if (probe == nullptr || probe->rung != Rung::kReplay || !replay_) return fleet_->Asked(node, command);
    Probe of_search = *probe;
    of_search.search = replay_->id();
    return Command(of_search);
  }

  void LookAtReplay(uint64_t id) {
    if (!replay_ || replay_->id() != id || plan_.mutant == Mutant::kReplayForever) return;
    schedule_.In(kLookAtReplay, [this, id] { LookAtReplay(id); });
    replay_->Tick(schedule_.now());
    TellReplay();
  }

  void TellReplay() {
    for (const auto& [node, told] : replay_->TakeWords()) Down(node, told);
    const std::optional<Probed> answer = replay_->TakeAnswer();
    if (!answer) return;
    Tell("the replay is over: {}", answer->note);
    replay_.reset();
    Handle(*answer);
  }

  void LeaveReplay() {
    if (!replay_ || (state().mode == Mode::kProbing && state().fault.plan.rung == Rung::kReplay)) return;
    DownAll(ReplayStop{replay_->id(), 0});
    replay_.reset();
  }

  void EndProbe(const Probe& probe) {
    if (!coordinator_ || state().mode != Mode::kProbing || state().epoch != probe.epoch) return;
    if (state().fault.plan.rung != probe.rung) return;
    std::vector<int> unanswered;
    Probed probed = fleet_->Overdue(probe.rung, unanswered);
    for (const int node : unanswered) probed.unanswered.push_back(std::to_string(node));
    Handle(probed);
  }

  // ---- its process ----

  void BeginToListen(EpochId epoch) {
    std::vector<int> keepers;
    for (int node = 0; node < plan_.nodes; ++node) keepers.push_back(plan_.nodes > 1 ? cluster_.KeeperOf(node) : -1);
    fleet_ = std::make_unique<Fleet>(std::move(keepers));
    fleet_->Begin(epoch);
    attendants_.assign(static_cast<size_t>(plan_.nodes), Attendant{});
    for (Attendant& attendant : attendants_) attendant.lost_since = schedule_.now();
    network_.Open();
  }

  void KillCoordinator() {
    if (!coordinator_ || finished_ || disk_.rows.empty()) return;
    const bool forgets = coordinator_->events_waiting() > 0;  // what a full disk has not taken is gone with the process
    Tell("the coordinator is killed{}", forgets ? ", with what it had no room to write" : "");
    last_state_ = state();
    coordinator_.reset();
    replay_.reset();
    network_.Close();
    schedule_.In(chance_.Between(0.2, 3), [this, forgets] { ResumeCoordinator(forgets); });
  }

  void ResumeCoordinator(bool forgets) {
    auto resumed = Coordinator::Resume(disk_, clock_);
    if (!resumed.ok()) return promises_.Break(Message(resumed.status()));
    coordinator_ = std::move(resumed->coordinator);
    if (forgets) promises_.Forget(state());
    Tell("another coordinator takes over in mode {}, epoch {}", ModeText(), state().epoch.value());
    const uint64_t coming = state().mode == Mode::kLoading ? 1 : 0;  // then the acting epoch has not begun
    BeginToListen(EpochId(state().epoch.value() - coming));
    Carry(resumed->commands);
    for (int node = 0; node < plan_.nodes; ++node) Reconnect(node);
    StandbysCome(1);
  }

  void Reconnect(int node) {
    schedule_.In(chance_.Between(0, 1), [this, node] { network_.Connect(node); });
  }

  // ---- what breaks ----

  void BreakSomething() {
    if (!coordinator_ || finished_) return;
    const int node = chance_.Below(plan_.nodes), rank = chance_.Below(plan_.ranks_per_node);
    ++result_.faults;
    switch (chance_.Below(12)) {
      case 0:
      case 1:
        return Crash(node, rank);
      case 2:
        Tell("a rank of node {} hangs", node);
        return Count(cluster_.Hang(node, rank));
      case 3:
        return Cut(node, chance_.Hits(0.8) ? chance_.Between(0.05, 4) : chance_.Between(4, 8));
      case 4:
        Tell("node {} falls silent", node);
        return network_.Silence(node, chance_.Between(0.5, 8));
      case 5:
        return KillCoordinator();
      case 6:
        return FillDisk(node, rank);
      case 7:
        return Corrupt(node, rank);
      case 8:
        return AccuseMachine(node);
      case 9:
        return DisturbNetwork(node);
      case 10:
        return Spoil(node, rank);
      default:
        cluster_.FailNextSpawn(node);
        return Crash(node, rank);
    }
  }

  std::string TokenOf(int node) const { return state().spec.nodes[static_cast<size_t>(node)].token; }

  void Accuse(int node) {
    promises_.Accuse(TokenOf(node));
    promises_.AddCause();
  }

  // Its inspection says that it is broken; some such machines can't end their ranks for a while.
  void AccuseMachine(int node) {
    Tell("the machine of node {} says that it is broken", node);
    if (!cluster_.IsDead(node)) Accuse(node);
    const bool stuck = chance_.Hits(0.4);
    const bool heals = chance_.Hits(0.3);
    cluster_.Alert(node, AlertClass::kMachine, "gpu_xid", stuck ? Seconds{4} : Seconds{});
    if (heals) cluster_.ClearSoon(node, "gpu_xid", chance_.Between(0.1, 5));
  }

  void DisturbNetwork(int node) {
    BreakNetwork(node);
    cluster_.ClearSoon(node, "link", Seconds{0.2});
    if (chance_.Hits(0.4)) return;
    schedule_.In(chance_.Between(0.5, 3), [this, node, machine = cluster_.machine(node)] {
      if (!finished_ && machine == cluster_.machine(node)) BreakNetwork(node);
    });
  }

  // One alert accuses nobody.
  void BreakNetwork(int node) {
    if (cluster_.IsDead(node)) return;
    const bool again = ++network_alerts_[TokenOf(node)] > 1;
    Tell("the network of node {} is down{}", node, again ? " again" : "");
    if (again) Accuse(node);
    cluster_.Alert(node, AlertClass::kNetwork, "link", {});
  }

  // It makes ranks crash, and only a probe can tell that it does.
  void Spoil(int node, int rank) {
    Tell("the machine of node {} is broken, and does not know it", node);
    promises_.Accuse(TokenOf(node));
    const Rung found_by = chance_.Hits(0.6) ? Rung::kDiagnose : Rung::kReplay;
    if (found_by == Rung::kReplay) promises_.Spoil(TokenOf(node));
    cluster_.Spoil(node, found_by);
    Crash(node, rank);
    for (int i = 0; i < 2; ++i)
      schedule_.In(chance_.Between(1, 8), [this, node, rank, machine = cluster_.machine(node)] {
        if (!finished_ && machine == cluster_.machine(node)) Crash(node, rank);
      });
  }

  void Count(bool broken) {
    if (broken) promises_.AddCause();
  }

  void Crash(int node, int rank) {
    Tell("a rank of node {} crashes", node);
    Count(cluster_.Crash(node, rank));
  }

  void Cut(int node, Seconds duration) {
    Tell("node {} is cut off for {:.1f} s", node, duration.value);
    network_.Cut(node, duration);
  }

  void FillDisk(int node, int rank) {
    Tell("the disk is full");
    disk_.full = true;
    schedule_.In(chance_.Between(0.1, 4), [this] { Empty(); });
    if (!chance_.Hits(0.5)) return;
    // What happens now is not written down, and then whoever knows it is gone.
    if (chance_.Hits(0.7)) Crash(node, rank);
    schedule_.In(chance_.Between(0.1, 2), [this] { KillCoordinator(); });
  }

  void Corrupt(int node, int rank) {
    Tell("checkpoints of node {} are damaged", node);
    cluster_.Corrupt(node, rank);
    if (!chance_.Hits(0.5)) return;
    for (int i = 0; i < 5; ++i) cluster_.Corrupt(node, rank);  // hardly any is left, and one is asked for
    Crash(node, rank);
  }

  // The events that waited go in with the next one.
  void Empty() {
    disk_.full = false;
    if (coordinator_) Handle(ProgressSeen{state().epoch, state().progress});
  }

  void Heal() {
    if (disk_.full) Empty();
    if (!node_lost_) cluster_.Settle();
  }

  void AskStop() {
    if (finished_) return;
    const int node = chance_.Below(plan_.nodes), way = chance_.Below(3);
    if (std::exchange(stop_asked_, true) || way == 1) promises_.BeImpatient();
    Tell("a stop is asked for");
    if (way == 2) {  // a scheduler's
      for (int each = 0; each < plan_.nodes; ++each) AskStopAt(each, chance_.Between(0, 0.3));
      return;
    }
    AskStopAt(node, {});
    if (way == 1) AskStopAt(node, chance_.Between(0.2, 3));
  }

  // By way of a node, or of the coordinator itself if there is nobody at node 0.
  void AskStopUntilItEnds() {
    if (finished_) return;
    if (cluster_.IsDead(0) && coordinator_) {
      promises_.BeImpatient();
      Handle(StopAsked{SIGTERM});
    } else {
      AskStop();
    }
    schedule_.In(Seconds{10}, [this] { AskStopUntilItEnds(); });
  }

  void AskStopAt(int node, Seconds delay) {
    schedule_.In(delay, [this, node] {
      if (!cluster_.IsDead(node)) network_.ToCoordinator(node, false, [this, node] { HearStop(node); });
    });
  }

  void LoseANode() {
    if (finished_) return;
    const int node = chance_.Below(plan_.nodes);
    ++result_.faults;
    node_lost_ = true;
    if (chance_.Hits(0.3)) {
      Cut(node, chance_.Between(20, 100));
      return EndIfAlone(node, schedule_.now());
    }
    Tell("node {} dies", node);
    chance_.Hits(0.5) ? network_.Silence(node, kForGood) : network_.Cut(node, kForGood);
    if (cluster_.Die(node)) promises_.LoseRanks(state());
  }

  // An agent without a coordinator, with ranks that do not step, ends them and itself.
  void EndIfAlone(int node, Nanos since) { EndIfAlone(node, since, cluster_.machine(node)); }
  void EndIfAlone(int node, Nanos since, int machine) {
    if (Of(node).attends || machine != cluster_.machine(node)) return;
    const Nanos end = std::max(since, cluster_.SteppedAt(node)) + ToNanos(kAdoption);
    if (schedule_.now() < end) return schedule_.At(end, [=, this] { EndIfAlone(node, since, machine); });
    Tell("node {} gives up", node);
    if (cluster_.Die(node)) promises_.LoseRanks(state());
    network_.Cut(node, kForGood);
  }

  // ---- what must hold ----

  Attendant& Of(int node) { return attendants_[static_cast<size_t>(node)]; }
  const State& state() const { return coordinator_ ? coordinator_->state() : last_state_; }

  bool EverybodyIsHere() const {
    return coordinator_ && std::all_of(attendants_.begin(), attendants_.end(),
                                       [](const Attendant& each) { return each.attends || each.gone; });
  }

  // Nobody leaves while others than those that are to may be gone, too.
  bool AwaitsOthers() const {
    const std::vector<Evictee>& planned = state().fault.plan.evict;
    const std::vector<int> unstopped = fleet_ ? fleet_->Unstopped() : std::vector<int>{};
    return state().mode == Mode::kStopping && std::any_of(unstopped.begin(), unstopped.end(), [&](int node) {
             return std::none_of(planned.begin(), planned.end(),
                                 [&](const Evictee& each) { return each.node == node; });
           });
  }

  void Check() {
    result_.restarts = state().restarts;
    result_.replay_evictions = static_cast<int>(
        std::ranges::count(state().evictions, Role::kReplay, [](const Eviction& one) { return one.role; }));
    if (!EverybodyIsHere() || AwaitsOthers()) promises_.Excuse();
    promises_.Check(state());
  }

  void CheckEnd() {
    promises_.CheckEnd(state());
    for (int node = 0; node < plan_.nodes; ++node) {
      if (cluster_.HasRanks(node) && !Of(node).gone)
        promises_.Break(fmt::format("the job is over, and ranks of node {} run on", node));
    }
  }

  template <typename... Values>
  void Tell(fmt::format_string<Values...> text, Values&&... values) {
    if (plan_.story)
      result_.story.push_back(fmt::format("{:8.3f} s  {}", ToSeconds(schedule_.now()).value,
                                          fmt::format(text, std::forward<Values>(values)...)));
  }

  const SimulationPlan plan_;
  Schedule schedule_;
  Chance chance_;
  VirtualClock clock_;
  MemoryJournal disk_;
  Network network_;
  Cluster cluster_;
  Promises promises_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<ReplaySearch> replay_;
  std::vector<Attendant> attendants_;
  State last_state_;  // while there is no coordinator
  Nanos newest_step_end_, advanced_at_;
  int machines_asked_ = 0, machines_came_ = 0;  // asked: and not come yet
  std::map<std::string, int> network_alerts_;   // by token
  bool finished_ = false, node_lost_ = false, stop_asked_ = false;
  SimulationResult result_;
};

}  // namespace

SimulationResult Simulate(const SimulationPlan& plan) { return Simulation(plan).Run(); }

}  // namespace lockstep::control
