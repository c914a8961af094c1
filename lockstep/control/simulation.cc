#include "lockstep/control/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "lockstep/control/coordinator.h"
#include "lockstep/control/memory_journal.h"
#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {
namespace {

constexpr double kFaultsUntil = 12, kHealed = 20, kDeadline = 300, kSlowStep = 0.2;
constexpr Seconds kLongRepair{10}, kLastWords{0.3};

class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(const Schedule& schedule) : schedule_(schedule) {}
  Nanos Now() const override { return schedule_.now(); }
  Nanos WallNow() const override { return schedule_.now(); }

 private:
  const Schedule& schedule_;
};

// The network, the coordinator's process, and what breaks.
class Simulation {
 public:
  explicit Simulation(const SimulationPlan& plan)
      : plan_(plan),
        chance_(plan.seed),
        clock_(schedule_),
        links_(static_cast<size_t>(plan.nodes)),
        cluster_(plan, 60 + chance_.Below(120), schedule_, chance_,
                 [this](int node, Said said) { Up(node, std::move(said)); }) {}

  SimulationResult Run() {
    Begin();
    const Nanos deadline = ToNanos(Seconds{kDeadline});
    while (result_.broken.empty() && !finished_ && schedule_.now() < deadline && schedule_.Next()) Check();
    CheckEnd();
    result_.virtual_s = ToSeconds(schedule_.now()).value;
    return result_;
  }

 private:
  struct Link {
    bool up = false;
    int64_t connection = 0;
    Nanos last_up, last_down;  // what arrives keeps its order
  };

  void Begin() {
    JobSpec spec;
    spec.ranks = plan_.nodes * plan_.ranks_per_node;
    max_restarts_ = chance_.Hits(0.2) ? 1 + chance_.Below(2) : 1000;
    spec.max_restarts = plan_.mutant == Mutant::kNoBudget ? 1'000'000 : max_restarts_;
    coordinator_ = std::make_unique<Coordinator>(disk_, clock_);
    fleet_ = std::make_unique<Fleet>(plan_.nodes);
    for (int node = 0; node < plan_.nodes; ++node) Connect(node);
    started_ = schedule_.now();
    Handle(JobStarted{spec});
    const int faults = chance_.Below(7);
    for (int i = 0; i < faults; ++i) schedule_.In(chance_.Between(0.5, kFaultsUntil), [this] { BreakSomething(); });
    schedule_.In(Seconds{kHealed}, [this] { Heal(); });
  }

  // ---- the network ----

  Link& LinkOf(int node) { return links_[static_cast<size_t>(node)]; }

  Nanos Arrival(Nanos& last) {
    const Seconds delay = chance_.Hits(0.02) ? chance_.Between(0.1, 0.8) : chance_.Between(0.0005, 0.01);
    return last = std::max(last, schedule_.now() + ToNanos(delay));
  }

  // Delivers in order while the connection stands; now and then once more, late, whatever became of the connection.
  template <typename Deliver>
  void Send(int node, Nanos& last, const Deliver& deliver) {
    if (!LinkOf(node).up) return;
    const Nanos arrival = Arrival(last);
    schedule_.In(ToSeconds(arrival - schedule_.now()), [this, node, deliver, connection = LinkOf(node).connection] {
      if (LinkOf(node).up && LinkOf(node).connection == connection) deliver();
    });
    if (chance_.Hits(0.03)) schedule_.In(ToSeconds(arrival - schedule_.now()) + chance_.Between(0, 3), deliver);
  }

  void Up(int node, Said said) {
    Send(node, LinkOf(node).last_up, [this, node, said = std::move(said)] {
      if (coordinator_) std::visit([&](const auto& body) { Hear(node, body); }, said);
    });
  }

  void Down(int node, Told told) {
    Send(node, LinkOf(node).last_down, [this, node, told = std::move(told)] { cluster_.Tell(node, told); });
  }

  void DownAll(const Told& told) {
    for (int node = 0; node < plan_.nodes; ++node) Down(node, told);
  }

  void Connect(int node) {
    if (LinkOf(node).up || !coordinator_) return;
    LinkOf(node).up = true;
    ++LinkOf(node).connection;
    cluster_.Reconnect(node);
  }

  void Cut(int node, Seconds duration) {
    LinkOf(node).up = false;
    schedule_.In(duration, [this, node] { Connect(node); });
  }

  // ---- the coordinator's process ----

  void Hear(int node, const EventBody& said) {
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
    const std::optional<ChooseOnDisk> before = fleet_->question();
    for (const EventBody& event : fleet_->Hear(node, found)) Handle(event);
    if (!fleet_->question() || fleet_->question() == before) return;
    if (before && plan_.mutant == Mutant::kOneLook) return Handle(RestoreChosen{found.epoch, {}, {}});
    DownAll(*fleet_->question());
  }

  void Hear(int node, const Holding& holding) {
    fleet_->Hear(node, holding);
    if (const std::optional<Commit> news = fleet_->CommitNews()) DownAll(*news);
  }

  void Hear(int node, const Samples& samples) { fleet_->Hear(node, samples); }
  void Hear(int, const StoreAt&) {}
  void Hear(int, const CommunicationSeen&) {}  // simulated ranks have no collectors
  void Hear(int, const Observed&) {}
  void Hear(int, const FlushWanted&) {}
  void Hear(int, const PartWritten&) {}
  void Hear(int, const DiskDone&) {}

  void Hear(int node, const AllSaid& said) {
    if (said.epoch > state().epoch && plan_.mutant != Mutant::kTrustJournal) {
      ++causes_;  // what nobody wrote down is done again
      Handle(JournalBehind{said.epoch});
    }
    if (plan_.mutant == Mutant::kForgetPending) return;
    Down(node, fleet_->commit());
    for (const Command& command : PendingCommands(state())) Down(node, fleet_->Asked(command));
  }

  void Handle(const EventBody& body) {
    const Mode before = state().mode;
    const auto commands = coordinator_->Handle(body);
    if (!commands.ok()) return Break(Message(commands.status()));
    if (before != state().mode)
      result_.transitions.insert(fmt::format("{} -> {}", ModeName(before), ModeName(state().mode)));
    Carry(*commands);
  }

  void Carry(const std::vector<Command>& commands) {
    for (const Command& command : commands) {
      if (const auto* spawn = std::get_if<Spawn>(&command)) fleet_->Begin(spawn->epoch);
      if (const auto* kill = std::get_if<KillEpoch>(&command)) fleet_->Begin(kill->epoch);
      if (const auto* wait = std::get_if<WaitForCulprit>(&command)) {
        schedule_.In(wait->at_most, [this, epoch = wait->epoch] {
          if (coordinator_) Handle(SecondaryGraceOver{epoch});
        });
      }
      if (std::holds_alternative<Finish>(command)) finished_ = true;
      DownAll(command);
    }
  }

  void KillCoordinator() {
    last_state_ = state();
    coordinator_.reset();
    fleet_.reset();
    for (Link& link : links_) link.up = false;
    schedule_.In(chance_.Between(0.2, 3), [this] { ResumeCoordinator(); });
  }

  void ResumeCoordinator() {
    auto resumed = Coordinator::Resume(disk_, clock_);
    if (!resumed.ok()) return Break(Message(resumed.status()));
    coordinator_ = std::move(resumed->coordinator);
    fleet_ = std::make_unique<Fleet>(plan_.nodes);
    fleet_->Begin(state().epoch);
    Carry(resumed->commands);
    for (int node = 0; node < plan_.nodes; ++node) schedule_.In(chance_.Between(0, 1), [this, node] { Connect(node); });
  }

  // ---- what breaks ----

  void BreakSomething() {
    if (!coordinator_ || finished_) return;
    const int node = chance_.Below(plan_.nodes), rank = chance_.Below(plan_.ranks_per_node);
    ++result_.faults;
    switch (chance_.Below(8)) {
      case 0:
      case 1:
        causes_ += cluster_.Crash(node, rank) ? 1 : 0;
        break;
      case 2:
        causes_ += cluster_.Hang(node, rank) ? 1 : 0;
        break;
      case 3:
        Cut(node, chance_.Between(0.05, 4));
        break;
      case 4:
        if (!disk_.rows.empty()) KillCoordinator();  // what a full disk has not taken is gone with the process
        break;
      case 5:
        disk_.full = true;
        schedule_.In(chance_.Between(0.1, 4), [this] { Empty(); });
        if (!chance_.Hits(0.5)) break;
        // What happens now is not written down, and then whoever knows it is gone.
        causes_ += cluster_.Crash(node, rank) ? 1 : 0;
        schedule_.In(chance_.Between(0.2, 2), [this] {
          if (coordinator_ && !finished_) KillCoordinator();
        });
        break;
      case 6:
        cluster_.Corrupt(node, rank);
        if (!chance_.Hits(0.5)) break;
        for (int i = 0; i < 5; ++i) cluster_.Corrupt(node, rank);  // hardly any is left, and one is asked for
        causes_ += cluster_.Crash(node, rank) ? 1 : 0;
        break;
      default:
        cluster_.FailNextSpawn(node);
        causes_ += cluster_.Crash(node, rank) ? 1 : 0;
    }
  }

  // The events that waited go in with the next one.
  void Empty() {
    disk_.full = false;
    if (coordinator_) Handle(ProgressSeen{state().epoch, state().progress});
  }

  void Heal() {
    if (disk_.full) Empty();
    for (int node = 0; node < plan_.nodes; ++node) Connect(node);
    cluster_.Settle();
  }

  // ---- what must hold ----

  const State& state() const { return coordinator_ ? coordinator_->state() : last_state_; }

  void Break(const std::string& promise) {
    if (result_.broken.empty())
      result_.broken = fmt::format("at {:.3f} s: {}", ToSeconds(schedule_.now()).value, promise);
  }

  void Check() {
    if (!cluster_.broken().empty()) Break(cluster_.broken());
    if (!coordinator_) return;
    result_.restarts = state().restarts;
    if (state().restarts > max_restarts_)
      Break(fmt::format("{} restarts, {} are allowed", state().restarts, max_restarts_));
    if (state().restarts > causes_ + cluster_.own_causes())
      Break(fmt::format("{} restarts for {} causes", state().restarts, causes_ + cluster_.own_causes()));
  }

  void CheckEnd() {
    if (!result_.broken.empty()) return;
    if (!finished_)
      return Break(
          fmt::format("nothing follows from mode {} in epoch {}", ModeName(state().mode), state().epoch.value()));
    if (const absl::Status valid = Validate(state()); !valid.ok()) Break(Message(valid));
    if (state().open) Break("an incident is open, and the job is over");
    const Ledger::Sums sums = state().ledger.Total(schedule_.now());
    const Nanos sum = std::accumulate(sums.begin(), sums.end(), Nanos{});
    if (sum != state().now - started_)
      Break(fmt::format("the ledger has {} ns of {} ns", sum.value, (state().now - started_).value));
    int64_t lost = 0;
    for (const incident::Incident& incident : state().incidents) CheckIncident(incident, lost += incident.steps_lost);
  }

  // One that was repaired closes when the steps lost by it, and by those before it, are done again: not only with the
  // job.
  void CheckIncident(const incident::Incident& incident, int64_t lost) {
    const Seconds enough = kLongRepair + Seconds{kSlowStep * static_cast<double>(lost)};
    const bool had_time = state().exit_code == 0 && state().now - incident.opened > ToNanos(enough);
    const bool at_the_end = state().now - incident.closed < ToNanos(kLastWords);
    if (had_time && at_the_end) Break(fmt::format("incident {} ended only with the job", incident.id));
  }

  const SimulationPlan plan_;
  Schedule schedule_;
  Chance chance_;
  VirtualClock clock_;
  MemoryJournal disk_;
  std::vector<Link> links_;
  Cluster cluster_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Fleet> fleet_;
  State last_state_;  // while there is no coordinator
  Nanos started_;
  bool finished_ = false;
  int max_restarts_ = 0;
  int causes_ = 0;  // faults after which a restart is right
  SimulationResult result_;
};

}  // namespace

const char* MutantName(Mutant mutant) {
  constexpr std::array<const char*, kMutants + 1> kNames = {"none",
                                                            "no fence",
                                                            "stale commands",
                                                            "commit early",
                                                            "stale writer",
                                                            "first node stopped",
                                                            "any node's point",
                                                            "no budget",
                                                            "forget pending",
                                                            "spawn twice",
                                                            "never caught up",
                                                            "trust the journal",
                                                            "never dead",
                                                            "one look"};
  return kNames[static_cast<size_t>(mutant)];
}

SimulationResult Simulate(const SimulationPlan& plan) { return Simulation(plan).Run(); }

}  // namespace lockstep::control
