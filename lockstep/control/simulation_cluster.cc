#include "lockstep/control/simulation_cluster.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>

namespace lockstep::control {
namespace {

constexpr double kStubborn = 0.2, kMute = 0.1;
constexpr Seconds kTick{0.1}, kDetection{2}, kLookAgain{0.05};

}  // namespace

Cluster::Cluster(const SimulationPlan& plan, Worlds worlds, Telling telling, int64_t steps, Schedule& schedule,
                 Chance& chance, Say say)
    : plan_(plan),
      worlds_(worlds),
      telling_(telling),
      steps_(steps),
      schedule_(schedule),
      chance_(chance),
      say_(std::move(say)) {
  for (int node = 0; node < plan.nodes; ++node) {
    const int machine = Add({std::to_string(node), plan.ranks_per_node, fmt::format("token {}", node)});
    nodes_[At(machine)].mute = chance_.Hits(kMute);
    world_.push_back(machine);
  }
  CountThrough();
}

int Cluster::Add(const NodeSpec& spec) {
  const int machine = machines();
  Node& node = nodes_.emplace_back();
  node.ranks.resize(At(plan_.ranks_per_node));
  node.name = spec.name;
  node.token = spec.token;
  schedule_.In(chance_.Between(0, kTick.value), [this, machine] { Tick(machine); });
  return machine;
}

void Cluster::Break(std::string promise) {
  if (broken_.empty()) broken_ = std::move(promise);
}

void Cluster::FollowEarlierRuns(EpochId first) {
  for (Node& node : nodes_) node.epoch = EpochId(first.value() - 1);
  const int kept = chance_.Below(4);
  for (int i = 0; i < kept; ++i) PutOnDisk({EpochId(first.value() - 1), int64_t{10} * i});
}

void Cluster::Tell(int node, const Told& told) {
  if (nodes_[At(node)].dead) return;
  if (const Command* command = std::get_if<Command>(&told))
    return std::visit([&](const auto& body) { Do(node, body); }, *command);
  if (const Commit* commit = std::get_if<Commit>(&told)) Do(node, *commit);
  if (const HostStore* wish = std::get_if<HostStore>(&told)) Do(node, *wish);
  if (const ChooseOnDisk* question = std::get_if<ChooseOnDisk>(&told)) Do(node, *question);
  if (const FetchKept* question = std::get_if<FetchKept>(&told)) Do(node, *question);
  if (const ReplayRun* run = std::get_if<ReplayRun>(&told)) Do(node, *run);
  if (const ReplayStop* stop = std::get_if<ReplayStop>(&told)) Do(node, *stop);
}

// All that was said over an older stream may be lost. Of one that holds something, another place counts from the
// coming epoch on.
void Cluster::Welcome(int index, const HeldAs& place) {
  Node& node = nodes_[At(index)];
  if (node.dead) return;
  if (node.published_for.value() == 0) {
    node.place = place;
    NoteRunning(index);
  } else if (const HeldAs told = node.coming.value_or(node.place); told != place) {
    node.coming = place;
    node.loaded.reset();  // it was for another place
  }
  node.holding_told.reset();
  node.committed_told.reset();
  node.step_told = -2;
  for (const EventBody& fact : node.said) SayNow(index, fact);
  if (place.nodes > 1) SayNow(index, KeepsAt{"", index});
  for (const Alerted& alert : node.alerts) SayAlert(index, alert);
  SayNow(index, AllSaid{std::max(node.epoch, node.published_for)});
}

void Cluster::SayAlert(int index, Alerted alert) {
  alert.node = nodes_[At(index)].place.node;
  SayNow(index, EventBody(alert));
}

void Cluster::SayNow(int index, Said said) {
  if (!nodes_[At(index)].dead) say_(index, std::move(said));
}

void Cluster::Remember(int index, EpochId epoch, const EventBody& fact) {
  Node& node = nodes_[At(index)];
  if (!std::holds_alternative<RankExited>(fact))
    std::erase_if(node.said, [&](const EventBody& other) { return other.index() == fact.index(); });
  if (epoch == node.epoch) node.said.push_back(fact);
  SayNow(index, fact);
}

void Cluster::Do(int index, const HostStore& wish) {
  schedule_.In(chance_.Between(0.005, 0.05),
               [this, index, epoch = wish.epoch] { SayNow(index, StoreAt{epoch, nodes_[At(index)].name, 1}); });
}

void Cluster::Do(int index, const Spawn& command) {
  Node& node = nodes_[At(index)];
  const bool ended = command.epoch == node.epoch && node.ranks.front().epoch != node.epoch;  // before it began here
  if (ended) return Remember(index, node.epoch, SpawnFailed{node.epoch, "it was ended before it began"});
  if (command.epoch < node.epoch || (command.epoch == node.epoch && node.stopped)) return;
  const std::string& hash = command.version.hash;
  if (!hash.empty() && !node.joined && !node.code.contains(hash))  // one that is new copies it now
    Break(fmt::format("node {} is to run version {}, of which it has no copy", index, command.version.number));
  const bool again = command.epoch == node.epoch && !node.failed;
  if (again && plan_.mutant != Mutant::kSpawnTwice) {
    if (node.spawned) Remember(index, node.epoch, EpochSpawned{node.epoch});
    return;
  }
  node.epoch = command.epoch;
  node.spawned = node.failed = node.stopped = false;
  node.loop.reset();
  node.said.clear();
  Start(index);
}

// Now and then the directory is not what it was where the update was asked for.
void Cluster::Do(int index, const KeepCode& command) {
  const bool fails = chance_.Hits(0.05);
  const std::string error = fails ? fmt::format("node {} has other code", index) : "";
  schedule_.In(chance_.Between(0.005, 2), [this, index, error, version = command.version] {
    if (error.empty()) nodes_[At(index)].code.insert(version.hash);
    SayNow(index, EventBody(CodeKept{version.number, error}));
  });
}

void Cluster::Do(int index, const KillEpoch& command) {
  Node& node = nodes_[At(index)];
  if (command.epoch < node.epoch && plan_.mutant != Mutant::kStaleCommands) return;
  if (command.epoch > node.epoch) {  // it never began here, and now it never will
    node.epoch = command.epoch;
    node.spawned = node.stopped = false;
    node.said.clear();
    node.loop.reset();
  }
  if (command.grace.value > 0) AskToLeave(index, command.grace);
  const Nanos deadline = schedule_.now() + ToNanos(command.grace);
  nodes_[At(index)].leave_by = deadline;
  schedule_.In(chance_.Between(0.005, 0.05),
               [this, index, epoch = node.epoch, deadline] { EndEpoch(index, epoch, deadline); });
}

// SIGTERM: most leave soon, one that hangs or does not care stays.
void Cluster::AskToLeave(int index, Seconds grace) {
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank) {
    if (chance_.Hits(kStubborn)) continue;
    schedule_.In(chance_.Between(0.01, std::min(2.0, grace.value)),
                 [this, index, rank, process = nodes_[At(index)].ranks[At(rank)].process] {
                   const Rank& later = nodes_[At(index)].ranks[At(rank)];
                   if (later.alive && !later.hung && later.process == process) Leave(index, rank, {0, SIGTERM});
                 });
  }
}

void Cluster::EndEpoch(int index, EpochId epoch, Nanos deadline) {
  Node& node = nodes_[At(index)];
  if (node.epoch != epoch) return;
  if (HasRanks(index) && schedule_.now() < std::max(deadline, node.stuck_until))
    return schedule_.In(kLookAgain, [this, index, epoch, deadline] { EndEpoch(index, epoch, deadline); });
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank)
    if (node.ranks[At(rank)].alive) Leave(index, rank, {0, SIGKILL});
  node.stopped = true;
  Remember(index, epoch, EpochStopped{epoch});
}

// Also of an epoch that never began here.
void Cluster::Do(int index, const KeepStacks& command) {
  if (command.epoch < nodes_[At(index)].epoch) return;
  schedule_.In(Seconds{0.02},
               [this, index, epoch = command.epoch] { Remember(index, epoch, StacksKept{epoch, "stacks"}); });
}

int Cluster::MachineOf(const std::string& token) const {
  const auto found = std::ranges::find(nodes_, token, &Node::token);
  return found == nodes_.end() ? -1 : static_cast<int>(found - nodes_.begin());
}

void Cluster::Alert(int index, AlertClass kind, const std::string& item, Seconds stuck) {
  Node& node = nodes_[At(index)];
  if (node.dead) return;
  if (stuck.value > 0) node.stuck_until = schedule_.now() + ToNanos(stuck);
  node.alerts.push_back({-1, item, kind, "", "it says so", schedule_.now()});
  SayAlert(index, node.alerts.back());
}

void Cluster::ClearSoon(int index, const std::string& item, Seconds delay) {
  schedule_.In(delay, [this, index, item] {
    Node& node = nodes_[At(index)];
    for (Alerted& alert : node.alerts) {
      if (alert.item != item) continue;
      alert.cleared = true;
      SayAlert(index, alert);
    }
    std::erase_if(node.alerts, [&](const Alerted& alert) { return alert.cleared; });
  });
}

void Cluster::Do(int index, const ChooseRestore& command) {
  const Node& node = nodes_[At(index)];
  if (!node.ComesNext(command.next)) return;
  RestoreFound found{.epoch = command.next, .points = Points(node), .rejected = {}};
  for (const Rank& rank : node.ranks)
    for (const Slot& slot : rank.slots)
      if (slot.done && slot.corrupt) found.rejected.push_back("a slot's CRC is wrong");
  for (const Part& part : node.keeps) found.kept.push_back(part.of);
  Answer(index, std::move(found), chance_.Between(0.01, 0.05));
}

void Cluster::Do(int index, const PublishRestore& command) {
  Node& node = nodes_[At(index)];
  if (command.epoch <= node.published_for) return;
  if (node.coming) TakeNextPlace(node, command.point);
  const bool loaded = command.point && node.loaded && node.loaded->of.point == *command.point;
  node.cuts = loaded && node.loaded->content.empty();
  for (size_t rank = 0; loaded && rank < node.ranks.size(); ++rank) {
    node.ranks[rank].slots = {};
    if (!node.cuts) node.ranks[rank].slots[0] = Slot{*command.point, node.loaded->content[rank], true, false};
  }
  node.loaded.reset();
  node.published_for = command.epoch;
  node.restore = node.committed = command.point;
  node.dead_step = -1;
  node.meet_from = 0;
  NoteRunning(index);
  GiveUpKept(node);
}

void Cluster::Do(int index, const Commit& commit) {
  Node& node = nodes_[At(index)];
  if (commit.epoch != node.epoch || commit.epoch < node.published_for) return;
  if (commit.point.epoch.value() != 0 && (!node.committed || *node.committed < commit.point))
    node.committed = commit.point;
  node.secured = std::max(node.secured, commit.point);
  if (plan_.mutant != Mutant::kNeverDead) node.dead_step = std::max(node.dead_step, commit.dead_step);
  node.meet_from = std::max(node.meet_from, commit.meet_from);
  GiveUpKept(node);
}

void Cluster::Tick(int index) {
  schedule_.In(kTick, [this, index] { Tick(index); });
  Node& node = nodes_[At(index)];
  if (node.stopped) return;
  if (!node.loop) return telling_ == Telling::kNone ? SayHangs(index) : void();
  SendToKeeper(index);
  if (Holding holding = HoldingOf(node); holding != node.holding_told) {
    node.holding_told = holding;
    SayNow(index, std::move(holding));
  }
  if (node.committed != node.committed_told) {
    Observed observed;
    observed.committed = node.committed_told = node.committed;
    SayNow(index, std::move(observed));
  }
  if (const Progress progress = ProgressOf(node); progress.step != node.step_told) {
    node.step_told = progress.step;
    SayNow(index, Samples{node.epoch, {}, {}, progress});
  }
  SayHangs(index);
}

void Cluster::SayHangs(int index) {
  const Node& node = nodes_[At(index)];
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank) {
    const Rank& each = node.ranks[At(rank)];
    if (!each.alive || !each.hung || schedule_.now() - each.hung_since < ToNanos(kDetection)) continue;
    incident::Finding finding;
    finding.syndrome = incident::Syndrome::kStopped;
    finding.suspects = {incident::SuspectRank(RankId(Global(index, rank)))};
    finding.certain = true;
    finding.since = each.hung_since;
    SayNow(index, EventBody(Suspected{node.epoch, finding, ProgressOf(node)}));
  }
}

Progress Cluster::ProgressOf(const Node& node) const {
  Progress slowest{node.ranks.front().step, node.ranks.front().step_end};
  for (const Rank& rank : node.ranks)
    if (rank.step < slowest.step) slowest = {rank.step, rank.step_end};
  return slowest;
}

Nanos Cluster::SteppedAt(int index) const {
  Nanos newest;
  for (const Rank& rank : nodes_[At(index)].ranks) newest = std::max(newest, rank.step_end);
  return newest;
}

bool Cluster::MayRunOn(int index) const {
  const Node& node = nodes_[At(index)];
  return schedule_.now() < std::max(node.stuck_until, node.leave_by) + ToNanos(kLookAgain);
}

bool Cluster::HasRanks(int index) const {
  const std::vector<Rank>& ranks = nodes_[At(index)].ranks;
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.alive; });
}

}  // namespace lockstep::control
