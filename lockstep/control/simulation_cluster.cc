#include "lockstep/control/simulation_cluster.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <limits>

#include "lockstep/client/commit.h"

namespace lockstep::control {
namespace {

constexpr double kStep = 0.1, kFlushed = 0.1, kDamaged = 0.15, kStubborn = 0.2, kMute = 0.1;
constexpr Seconds kTick{0.1}, kDetection{2}, kLookAgain{0.05};

// One copy to the keeper of each node, and the news of it, lie between two that become whole everywhere.
Seconds StaleAfter(const SimulationPlan& plan) {
  if (plan.nodes > kMany) return Seconds{10};
  return Seconds{plan.nodes < kMany ? 4.0 : 6.0};
}

}  // namespace

Cluster::Cluster(const SimulationPlan& plan, Worlds worlds, int64_t steps, Schedule& schedule, Chance& chance, Say say)
    : plan_(plan), worlds_(worlds), steps_(steps), schedule_(schedule), chance_(chance), say_(std::move(say)) {
  for (int node = 0; node < plan.nodes; ++node) {
    const int machine = Add({std::to_string(node), plan.ranks_per_node, fmt::format("token {}", node)});
    nodes_[At(machine)].mute = chance_.Hits(kMute);
    world_.push_back(machine);
  }
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

template <typename Visit>
void Cluster::ForEachRank(const Visit& visit) {
  for (int machine = 0; machine < machines(); ++machine)
    for (int rank = 0; rank < plan_.ranks_per_node; ++rank) visit(machine, rank, nodes_[At(machine)].ranks[At(rank)]);
}

void Cluster::Break(std::string promise) {
  if (broken_.empty()) broken_ = std::move(promise);
}

// ---- the agent ----

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
  } else if (const HeldAs told = node.coming.value_or(node.place); told != place) {
    node.coming = place;
    node.loaded.reset();  // it was for another place
  }
  node.holding_told.reset();
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

void Cluster::Do(int index, const Spawn& command) {
  Node& node = nodes_[At(index)];
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
  if (command.point && node.loaded && node.loaded->of.point == *command.point) {
    for (size_t rank = 0; rank < node.ranks.size(); ++rank)
      node.ranks[rank].slots = {Slot{*command.point, node.loaded->content[rank], true, false}, Slot{}};
  }
  node.loaded.reset();
  node.published_for = command.epoch;
  node.restore = node.committed = command.point;
  node.dead_step = -1;
  GiveUpKept(node);
}

void Cluster::Do(int index, const Commit& commit) {
  Node& node = nodes_[At(index)];
  if (commit.epoch != node.epoch || commit.epoch < node.published_for) return;
  if (commit.point.epoch.value() != 0 && (!node.committed || *node.committed < commit.point))
    node.committed = commit.point;
  if (plan_.mutant != Mutant::kNeverDead) node.dead_step = std::max(node.dead_step, commit.dead_step);
  GiveUpKept(node);
}

void Cluster::Tick(int index) {
  schedule_.In(kTick, [this, index] { Tick(index); });
  Node& node = nodes_[At(index)];
  if (!node.loop || node.stopped) return;
  SendToKeeper(index);
  if (Holding holding = HoldingOf(node); holding != node.holding_told) {
    node.holding_told = holding;
    SayNow(index, std::move(holding));
  }
  if (const Progress progress = ProgressOf(node); progress.step != node.step_told) {
    node.step_told = progress.step;
    SayNow(index, EventBody(ProgressSeen{node.epoch, progress}));
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

bool Cluster::HasRanks(int index) const {
  const std::vector<Rank>& ranks = nodes_[At(index)].ranks;
  return std::any_of(ranks.begin(), ranks.end(), [](const Rank& rank) { return rank.alive; });
}

// ---- the workers ----

void Cluster::Start(int index) {
  Node& node = nodes_[At(index)];
  ForEachRank([&](int other, int rank, const Rank& each) {
    if (!each.alive) return;
    if (other == index) Break(fmt::format("rank {} runs twice in epoch {}", Global(other, rank), node.epoch.value()));
    if (each.epoch != node.epoch)
      Break(fmt::format("epochs {} and {} act at once", each.epoch.value(), node.epoch.value()));
  });
  CheckWorld(index);
  for (Rank& rank : node.ranks) {
    rank.epoch = node.epoch;
    ++rank.process;
    rank.alive = true;
    rank.hung = rank.loaded = false;
    rank.step = -1;
    rank.step_end = {};
  }
  schedule_.In(chance_.Between(0.05, 0.2), [this, index, epoch = node.epoch] { Started(index, epoch); });
}

void Cluster::Started(int index, EpochId epoch) {
  Node& node = nodes_[At(index)];
  if (node.epoch != epoch || node.stopped || node.dead) return;
  if (std::exchange(node.spawn_fails, false)) {
    ++own_causes_;
    for (Rank& rank : node.ranks) rank.alive = false;
    node.failed = true;
    return Remember(index, epoch, SpawnFailed{epoch, "fork: no memory"});
  }
  node.spawned = true;
  Remember(index, epoch, EpochSpawned{epoch});
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank) {
    const int64_t process = node.ranks[At(rank)].process;
    schedule_.In(chance_.Between(0.2, 0.6), [this, index, rank, process] { Load(index, rank, process); });
  }
}

void Cluster::Load(int index, int number, int64_t process) {
  Node& node = nodes_[At(index)];
  Rank& rank = node.ranks[At(number)];
  if (!rank.alive || rank.process != process) return;
  rank.loaded = true;
  if (node.restore && !Restore(index, number, *node.restore)) return;
  const bool lost = newest_whole_ && (!node.restore || *node.restore < *newest_whole_);
  if (lost && !corrupted_)
    Break(fmt::format("{} was whole on all ranks, and epoch {} begins from {}", PointName(newest_whole_),
                      node.epoch.value(), PointName(node.restore)));
  const bool on_disk = std::any_of(disk_.begin(), disk_.end(), [&](const DiskCheckpoint& checkpoint) {
    const bool own = static_cast<int>(checkpoint.damaged.size()) == node.place.nodes;
    const bool fits = own || worlds_.alike != Alike::kNot;
    return fits && std::find(checkpoint.damaged.begin(), checkpoint.damaged.end(), true) == checkpoint.damaged.end();
  });
  if (on_disk && !node.restore)
    Break(fmt::format("a checkpoint is whole on disk, and epoch {} begins from nothing", node.epoch.value()));
  const bool all = std::all_of(node.ranks.begin(), node.ranks.end(), [](const Rank& each) { return each.loaded; });
  if (!all) return;
  node.loop = LoopBegan{node.epoch, schedule_.now(), node.restore};
  progressed_ = schedule_.now();
  Remember(index, node.epoch, *node.loop);
  TryStep();
}

// What was damaged after the agent had verified it is found by the worker, which leaves.
bool Cluster::Restore(int index, int number, const CheckpointId& point) {
  Rank& rank = nodes_[At(index)].ranks[At(number)];
  const auto slot =
      std::find_if(rank.slots.begin(), rank.slots.end(), [&](const Slot& each) { return each.id == point; });
  const bool here = slot != rank.slots.end() && slot->done && slot->content.id == slot->id;
  if (!here)
    Break(fmt::format("rank {} is to restore {} and does not have it whole", Global(index, number), PointName(point)));
  const bool own = here && slot->content.rank == Global(index, number) && slot->content.ranks == Ranks(index);
  if (here && !own && worlds_.alike == Alike::kNot)
    Break(fmt::format("rank {} of {} restores what rank {} of {} wrote", Global(index, number), Ranks(index),
                      slot->content.rank, slot->content.ranks));
  if (!here || slot->corrupt) {
    ++own_causes_;
    Leave(index, number, {1, 0});
    return false;
  }
  rank.step = point.step;
  return true;
}

void Cluster::Leave(int index, int number, ExitStatus status, bool connection) {
  const Node& node = nodes_[At(index)];
  Rank& rank = nodes_[At(index)].ranks[At(number)];
  rank.alive = false;
  RankExited exit{rank.epoch, RankId(Global(index, number)), status, {}, ProgressOf(node), schedule_.now()};
  if (connection)
    exit.exception = ExceptionInfo{"RuntimeError", "Connection closed by peer", "train.py:50 in main", true};
  Remember(index, rank.epoch, exit);
}

bool Cluster::Crash(int index, int number) {
  if (!nodes_[At(index)].ranks[At(number)].alive) return false;
  Leave(index, number, {0, SIGSEGV});
  SurvivorsMayNotice(index, number);
  return true;
}

void Cluster::SurvivorsMayNotice(int index, int number) {
  ForEachRank([&](int node, int rank, const Rank& each) {
    if (!each.alive || !each.loaded || (node == index && rank == number) || !chance_.Hits(0.3)) return;
    schedule_.In(chance_.Between(0.001, 0.1), [this, node, rank, process = each.process] {
      const Rank& later = nodes_[At(node)].ranks[At(rank)];
      if (later.alive && later.process == process) Leave(node, rank, {1, 0}, true);
    });
  });
}

bool Cluster::Die(int index) {
  const bool worked = HasRanks(index);
  nodes_[At(index)].dead = true;
  for (Rank& rank : nodes_[At(index)].ranks) rank.alive = false;
  SurvivorsMayNotice(index, 0);
  NoteWhatIsLeft();
  return worked;
}

bool Cluster::Hang(int index, int number) {
  Rank& rank = nodes_[At(index)].ranks[At(number)];
  if (!rank.alive || !rank.loaded || rank.hung) return false;
  rank.hung = true;
  rank.hung_since = schedule_.now();
  return true;
}

bool Cluster::Corrupt(int index, int number) {
  Slot& slot = nodes_[At(index)].ranks[At(number)].slots[At(chance_.Below(2))];
  if (!slot.done) return false;
  return slot.corrupt = corrupted_ = true;
}

// ---- training and its checkpoints ----

// All ranks of one world, at one step.
bool Cluster::CanStep() const {
  const Node* first = nullptr;
  int ready_nodes = 0;
  for (const Node& node : nodes_) {
    if (std::none_of(node.ranks.begin(), node.ranks.end(), [](const Rank& rank) { return rank.alive; })) continue;
    if (first == nullptr) first = &node;
    const Rank& leads = first->ranks.front();
    for (const Rank& rank : node.ranks) {
      const bool ready = node.loop && rank.alive && rank.loaded && !rank.hung;
      if (!ready || rank.epoch != leads.epoch || rank.step != leads.step) return false;
    }
    ++ready_nodes;
  }
  return first != nullptr && ready_nodes == first->place.nodes;
}

void Cluster::TryStep() {
  if (stepping_ || !CanStep()) return;
  stepping_ = true;
  schedule_.In(chance_.Between(0.8 * kStep, 1.2 * kStep), [this] {
    stepping_ = false;
    if (!CanStep()) return;                                  // somebody left the collective
    ForEachRank([&](int node, int rank, const Rank& each) {  // the optimizer waits for this rank's copy
      if (!each.alive) return;
      const Seconds late = ToSeconds(std::max(Nanos{}, each.copied - schedule_.now())) + chance_.Between(0, 0.01);
      schedule_.In(late, [this, node, rank, process = each.process] { FinishStep(node, rank, process); });
    });
  });
}

void Cluster::FinishStep(int index, int number, int64_t process) {
  Rank& rank = nodes_[At(index)].ranks[At(number)];
  if (!rank.alive || rank.process != process || rank.hung) return;
  ++rank.step;
  rank.step_end = schedule_.now();
  if (settled_ && schedule_.now() - std::max(*settled_, progressed_) > ToNanos(StaleAfter(plan_)))
    Break(fmt::format("no checkpoint has become whole for {} s of steps", StaleAfter(plan_).value));
  Save(index, number);
  if (rank.step + 1 >= steps_) return Leave(index, number, {0, 0});
  TryStep();
}

bool Cluster::Writable(const Node& node, const Rank& rank, const Slot& slot) const {
  if (slot.id.epoch.value() == 0) return true;
  std::optional<CheckpointId> committed = node.committed;
  if (plan_.mutant == Mutant::kCommitEarly) {
    for (const CheckpointId& point : Points(node)) committed = std::max(committed, std::optional(point));
  }
  const auto shipped = [](const CheckpointId& id) { return ls_checkpoint{id.epoch.value(), id.step}; };
  return ls_can_give_up(shipped(slot.id), committed ? shipped(*committed) : ls_checkpoint{0, -1}, node.dead_step,
                        rank.epoch.value());
}

void Cluster::Save(int index, int number) {
  Node& node = nodes_[At(index)];
  Rank& rank = node.ranks[At(number)];
  const auto published = node.committed.value_or(CheckpointId{EpochId(0), -1});
  // The first one of an epoch has none before it.
  const int64_t previous = rank.step - 1 > (node.restore ? node.restore->step : -1) ? rank.step - 1 : -1;
  if (!ls_is_meeting(rank.step, previous, {published.epoch.value(), published.step})) return;
  size_t chosen = rank.slots.size();
  for (size_t i = 0; i < rank.slots.size(); ++i) {
    if (!Writable(node, rank, rank.slots[i])) continue;
    if (chosen == rank.slots.size() || rank.slots[i].id < rank.slots[chosen].id) chosen = i;
  }
  if (chosen == rank.slots.size()) return;  // skipped
  const CheckpointId id{rank.epoch, rank.step};
  rank.slots[chosen] = Slot{id, {}, false, false};
  const Seconds copying = chance_.Hits(0.05) ? chance_.Between(0.1, 0.4) : chance_.Between(0.001, 0.07);
  rank.copied = schedule_.now() + ToNanos(copying);
  const Content content{id, Global(index, number), Ranks(index)};
  schedule_.In(copying, [this, index, number, chosen, id, content, process = rank.process] {
    Rank& later = nodes_[At(index)].ranks[At(number)];
    const bool killed = later.process != process || (!later.alive && later.step + 1 != steps_);
    if (killed && plan_.mutant != Mutant::kStaleWriter) return;
    Slot& slot = later.slots[chosen];
    slot.content = content;
    slot.done = slot.done || slot.id == id;
    NoteCommitted();
  });
}

Holding Cluster::HoldingOf(const Node& node) const {
  Holding holding{node.epoch, Points(node, false), {}, std::numeric_limits<int64_t>::max()};
  if (node.place.nodes > 1 && plan_.mutant != Mutant::kCommitUnkept)
    std::erase_if(holding.points, [&](const CheckpointId& point) {
      return point.epoch == node.epoch && std::find(node.kept.begin(), node.kept.end(), point) == node.kept.end();
    });
  for (const Rank& rank : node.ranks)
    holding.passed = std::min(holding.passed, rank.epoch == node.epoch ? rank.step : -1);
  for (const Slot& slot : node.ranks.front().slots) {
    const bool whole = std::find(holding.points.begin(), holding.points.end(), slot.id) != holding.points.end();
    const bool may = std::all_of(node.ranks.begin(), node.ranks.end(), [&](const Rank& rank) {
      return rank.step < slot.id.step ||
             std::any_of(rank.slots.begin(), rank.slots.end(), [&](const Slot& other) { return other.id == slot.id; });
    });
    if (slot.id.epoch == node.epoch && !whole && may) holding.coming.push_back(slot.id);
  }
  return holding;
}

std::vector<CheckpointId> Cluster::Points(const Node& node, bool verified) const {
  std::vector<CheckpointId> points;
  for (const Slot& slot : node.ranks.front().slots) {
    const bool everywhere = std::all_of(node.ranks.begin(), node.ranks.end(), [&](const Rank& rank) {
      return std::any_of(rank.slots.begin(), rank.slots.end(), [&](const Slot& other) {
        return other.id == slot.id && (verified ? other.Whole() : other.done);
      });
    });
    if (everywhere) points.push_back(slot.id);
  }
  return points;
}

void Cluster::NoteCommitted() {
  for (const CheckpointId& point : Points(nodes_[At(world_.front())])) {
    const bool everywhere = std::all_of(world_.begin(), world_.end(), [&](int machine) {
      const std::vector<CheckpointId> points = Points(nodes_[At(machine)]);
      return std::find(points.begin(), points.end(), point) != points.end();
    });
    if (everywhere && (!newest_whole_ || *newest_whole_ < point)) {
      newest_whole_ = point;
      progressed_ = schedule_.now();
      if (chance_.Hits(kFlushed)) PutOnDisk(point);
    }
  }
}

void Cluster::PutOnDisk(const CheckpointId& id) {
  DiskCheckpoint checkpoint{id, {}};
  for (int node = 0; node < nodes(); ++node) checkpoint.damaged.push_back(chance_.Hits(kDamaged));
  disk_.push_back(checkpoint);
}

}  // namespace lockstep::control
