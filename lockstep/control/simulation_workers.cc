// The workers of the simulated cluster: how they start, load, train, save, crash and leave.
#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <limits>

#include "lockstep/client/commit.h"
#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {
namespace {

constexpr Seconds kLate{62};  // later than a job counts as one that tells no steps
constexpr double kStep = 0.1, kFlushed = 0.1, kDamaged = 0.15;

// One copy to the keeper of each node, and the news of it, lie between two that become whole everywhere.
Seconds StaleAfter(const SimulationPlan& plan) {
  if (plan.nodes > kMany) return Seconds{10};
  return Seconds{plan.nodes < kMany ? 4.0 : 6.0};
}

}  // namespace

template <typename Visit>
void Cluster::ForEachRank(const Visit& visit) {
  for (int machine = 0; machine < machines(); ++machine)
    for (int rank = 0; rank < plan_.ranks_per_node; ++rank) visit(machine, rank, nodes_[At(machine)].ranks[At(rank)]);
}

void Cluster::NoteRunning(int index) {
  const Node& node = nodes_[At(index)];
  running_.Set(index, HasRanks(index)
                          ? std::optional(Running::Ranks{node.ranks.front().epoch, node.place, node.restore})
                          : std::nullopt);
}

// One epoch acts, and no rank runs twice.
void Cluster::CheckEpochs(int index) {
  const Node& node = nodes_[At(index)];
  if (running_.AreOf(node.epoch) && !HasRanks(index)) return;
  ForEachRank([&](int other, int rank, const Rank& each) {
    if (!each.alive) return;
    if (other == index) Break(fmt::format("rank {} runs twice in epoch {}", Global(other, rank), node.epoch.value()));
    if (each.epoch != node.epoch)
      Break(fmt::format("epochs {} and {} act at once", each.epoch.value(), node.epoch.value()));
  });
}

void Cluster::Start(int index) {
  Node& node = nodes_[At(index)];
  CheckEpochs(index);
  CheckWorld(index);
  for (Rank& rank : node.ranks) {
    rank.epoch = node.epoch;
    ++rank.process;
    rank.alive = true;
    rank.hung = rank.loaded = false;
    rank.step = -1;
    rank.step_end = {};
  }
  NoteRunning(index);
  schedule_.In(chance_.Between(0.05, 0.2), [this, index, epoch = node.epoch] { Started(index, epoch); });
}

void Cluster::Started(int index, EpochId epoch) {
  Node& node = nodes_[At(index)];
  if (node.epoch != epoch || node.stopped || node.dead) return;
  if (std::exchange(node.spawn_fails, false)) {
    ++own_causes_;
    for (Rank& rank : node.ranks) rank.alive = false;
    NoteRunning(index);
    node.failed = true;
    return Remember(index, epoch, SpawnFailed{epoch, "fork: no memory"});
  }
  node.spawned = true;
  Remember(index, epoch, EpochSpawned{epoch});
  for (int rank = 0; rank < plan_.ranks_per_node; ++rank) {
    const int64_t process = node.ranks[At(rank)].process;
    const Seconds late = telling_ == Telling::kLate ? kLate : Seconds{};
    schedule_.In(chance_.Between(0.2, 0.6) + late, [this, index, rank, process] { Load(index, rank, process); });
  }
}

void Cluster::Load(int index, int number, int64_t process) {
  Node& node = nodes_[At(index)];
  Rank& rank = node.ranks[At(number)];
  if (!rank.alive || rank.process != process) return;
  rank.loaded = true;
  if (telling_ == Telling::kNone) return LeaveUnseen(index, number);
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
  node.looped = node.epoch;
  progressed_ = schedule_.now();
  Remember(index, node.epoch, *node.loop);
  TryStep();
}

// It has its own steps and checkpoints, and is done when it has run for long.
void Cluster::LeaveUnseen(int index, int number) {
  schedule_.In(kLate + chance_.Between(5, 20),
               [this, index, number, process = nodes_[At(index)].ranks[At(number)].process] {
                 const Rank& later = nodes_[At(index)].ranks[At(number)];
                 if (later.alive && later.process == process && !later.hung) Leave(index, number, {0, 0});
               });
}

// What was damaged after the agent had verified it is found by the worker, which leaves.
bool Cluster::Restore(int index, int number, const CheckpointId& point) {
  Rank& rank = nodes_[At(index)].ranks[At(number)];
  if (nodes_[At(index)].cuts) {
    rank.step = point.step;
    return true;
  }
  const auto slot =
      std::find_if(rank.slots.begin(), rank.slots.end(), [&](const Slot& each) { return each.id == point; });
  const bool here = slot != rank.slots.end() && slot->done && slot->content.id == slot->id;
  if (!here)
    Break(fmt::format("rank {} is to restore {} and does not have it whole", Global(index, number), PointName(point)));
  const bool own = here && slot->content.rank == Global(index, number) && slot->content.ranks == Ranks(index);
  if (here && !own && !worlds_.AreReplicas())
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
  NoteRunning(index);
  RankExited exit{rank.epoch, RankId(Global(index, number)), status, {}, ProgressOf(node), schedule_.now(), rank.step};
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
  NoteRunning(index);
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
  if (!running_.HasWorldOf(running_.machines())) return false;
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
  if (rank.step + 1 < steps_) return TryStep();
  // It has nothing left to do but to wait for its copy.
  schedule_.At(std::max(rank.copied, schedule_.now()), [this, index, number, process] {
    const Rank& last = nodes_[At(index)].ranks[At(number)];
    if (last.alive && last.process == process && !last.hung) Leave(index, number, {0, 0});
  });
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
  if (!ls_is_meeting(rank.step, previous, {published.epoch.value(), published.step}, node.meet_from)) return;
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
    const bool killed = later.process != process || !later.alive;
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

bool Cluster::HasWhole(const Node& node, const CheckpointId& point) {
  return std::all_of(node.ranks.begin(), node.ranks.end(), [&](const Rank& rank) {
    return std::any_of(rank.slots.begin(), rank.slots.end(),
                       [&](const Slot& slot) { return slot.id == point && slot.Whole(); });
  });
}

bool Cluster::AllHaveWhole(const CheckpointId& point) {
  const size_t first = lacking_;
  for (size_t i = 0; i < world_.size(); ++i) {
    lacking_ = (first + i) % world_.size();
    if (!HasWhole(nodes_[At(world_[lacking_])], point)) return false;
  }
  return true;
}

void Cluster::NoteCommitted() {
  for (const CheckpointId& point : Points(nodes_[At(world_.front())])) {
    if (newest_whole_ && point <= *newest_whole_) continue;
    if (!AllHaveWhole(point) || !(IsKnownWorld() || CanTake(point))) continue;
    newest_whole_ = point;
    progressed_ = schedule_.now();
    if (chance_.Hits(kFlushed)) PutOnDisk(point);
  }
}

void Cluster::PutOnDisk(const CheckpointId& id) {
  DiskCheckpoint checkpoint{id, {}};
  for (int node = 0; node < nodes(); ++node) checkpoint.damaged.push_back(chance_.Hits(kDamaged));
  disk_.push_back(checkpoint);
}

}  // namespace lockstep::control
