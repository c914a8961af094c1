// The simulated cluster where the world changes: who has which place, what an agent says that moves, and from what a
// new world may begin, by rules written anew.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {

void Cluster::CountThrough() {
  node_of_.assign(nodes_.size(), -1);
  for (int node = nodes(); node-- > 0;) node_of_[At(world_[At(node)])] = node;
}

// Whoever is none of them, by the journal, is refused when it comes, and what it runs ends.
void Cluster::Know(const std::vector<NodeSpec>& nodes) {
  std::unordered_map<std::string, int> newest;  // by token
  for (int machine = 0; machine < machines(); ++machine) newest[nodes_[At(machine)].token] = machine;
  std::vector<int> known;
  for (const NodeSpec& spec : nodes) {
    const auto machine = newest.find(spec.token);
    known.push_back(machine != newest.end() ? machine->second : Join(spec));
    newest[spec.token] = known.back();
  }
  const bool changed = known != std::exchange(world_, known);
  CountThrough();
  for (int machine = 0; machine < machines(); ++machine)
    if (node_of_[At(machine)] < 0 && !nodes_[At(machine)].out) Expel(machine);
  if (changed) NoteWhatIsLeft();
}

int Cluster::Join(const NodeSpec& spec) {
  const int machine = Add(spec);
  nodes_.back().joined = true;
  return machine;
}

void Cluster::Expel(int machine) {
  if (nodes_[At(machine)].out) return;
  nodes_[At(machine)].dead = nodes_[At(machine)].out = true;
  for (Rank& rank : nodes_[At(machine)].ranks) rank.alive = false;
  NoteRunning(machine);
  SurvivorsMayNotice(machine, 0);
}

void Cluster::Seat(int index, const NodeSpec& standby) {
  const int old = world_[At(index)];
  const auto must = IsKnownWorld() ? MustOutlive({old}) : std::nullopt;
  Expel(old);
  world_[At(index)] = Join(standby);
  CountThrough();
  Node& ward = nodes_[At(world_[At((index + nodes() - 1) % nodes())])];
  ward.kept.clear();  // its copies are gone
  NoteWhatIsLeft();
  CheckLeft(must);
}

void Cluster::Resize(const std::vector<int>& from, const std::vector<NodeSpec>& nodes) {
  std::set<int> lost;
  for (int index = 0; index < this->nodes(); ++index) {
    const int machine = world_[At(index)];
    const bool stays = std::find(from.begin(), from.end(), index) != from.end();
    if (!stays && nodes_[At(machine)].published_for.value() > 0) lost.insert(machine);
  }
  const auto must = IsKnownWorld() ? MustOutlive(lost) : std::nullopt;
  std::vector<int> world;
  for (size_t index = 0; index < from.size(); ++index)
    world.push_back(from[index] >= 0 ? world_[At(from[index])] : Join(nodes[index]));
  world_ = std::move(world);
  CountThrough();
  NoteWhatIsLeft();
  if (IsKnownWorld() || worlds_.AreReplicas()) CheckLeft(must);
}

// Whatever its nodes hold they wrote under the numbers that they have.
bool Cluster::IsKnownWorld() const {
  for (int index = 0; index < nodes(); ++index) {
    const Node& node = nodes_[At(world_[At(index)])];
    if (node.published_for.value() > 0 && node.place != HeldAs{index, nodes()}) return false;
  }
  return true;
}

bool Cluster::IsThereAndAlike() const {
  return worlds_.AreReplicas() && !corrupted_ &&
         std::none_of(world_.begin(), world_.end(), [this](int machine) { return IsDead(machine); });
}

// Somebody has it, and it is known that what all had is one and the same; whoever lacks it can have a copy of another.
bool Cluster::CanTake(const CheckpointId& point) const {
  if (!worlds_.AreReplicas()) return false;
  std::set<int> known, keepers;
  int parts = 0, holders = 0;
  std::optional<CheckpointId> committed;
  for (const int machine : world_) {
    const Node& node = nodes_[At(machine)];
    if (node.dead || node.published_for.value() == 0) continue;
    parts = std::max(parts, node.place.nodes);
    committed = std::max(committed, node.committed);
    if (!HasWhole(node, point)) continue;
    ++holders;
    known.insert(node.place.node);
  }
  for (const int machine : world_) {
    for (const Part& part : nodes_[At(machine)].keeps) {
      if (nodes_[At(machine)].dead || part.of.point != point || part.of.node < 0 || part.of.node >= parts) continue;
      known.insert(part.of.node);
      keepers.insert(machine);
    }
  }
  const bool fits = worlds_.alike == Alike::kBySaying || static_cast<int>(known.size()) == parts;
  if (!fits || holders == 0 || point > committed) return false;  // of what is not committed, copies may be given up
  return std::all_of(world_.begin(), world_.end(), [&](int machine) {
    return HasWhole(nodes_[At(machine)], point) || keepers.size() > keepers.count(machine);
  });
}

Replica Cluster::ReplicaOf(const Part& part, bool own) const {
  Replica replica{part.of.node, part.of.point};
  const bool lies = plan_.mutant == Mutant::kAllAlike;
  if (lies || (own && worlds_.alike == Alike::kBySaying)) {
    replica.low = replica.high = kSaidToBeReplica;
  } else if (own && worlds_.alike == Alike::kCutAnew) {
    replica.low = replica.high = kSaidToBeCut;
  } else if (worlds_.alike == Alike::kByTensors) {
    replica.low = replica.high = 7;
  } else if (part.content.size() == 1) {
    replica.low = static_cast<uint64_t>(part.content.front().rank) + 1;
  }
  return replica;
}

// With its numbers: those under which what it holds was written, and, if it moves, whether that is alike.
void Cluster::Answer(int index, RestoreFound found, Seconds delay) {
  const std::optional<HeldAs> asked = nodes_[At(index)].coming;
  schedule_.In(delay, [this, index, found = std::move(found), asked]() mutable {
    const Node& node = nodes_[At(index)];
    const bool of_memory = !found.fetched && !found.not_above, moves = asked.has_value();
    if (of_memory ? moves != node.coming.has_value() : asked != node.coming) return;  // it is asked anew
    if (plan_.mutant != Mutant::kOldNumbers)
      found.held = {node.published_for.value() > 0 ? node.place.node : -1, node.place.nodes};
    found.as = node.coming.value_or(node.place);
    for (const CheckpointId& point : found.points)
      if (of_memory && moves)
        found.replicas.push_back(ReplicaOf({{node.place.node, point}, ContentOf(node, point)}, true));
    for (const Part& part : node.keeps)
      if (of_memory) found.replicas.push_back(ReplicaOf(part, false));
    SayNow(index, std::move(found));
  });
}

// Of what the script cuts anew each node reads its share; of all else what its ranks begin from.
bool Cluster::IsDamagedFor(const DiskCheckpoint& checkpoint, const HeldAs& place, bool cut) {
  const int parts = static_cast<int>(checkpoint.damaged.size());
  if (!cut) return checkpoint.damaged[At(place.node % parts)];
  for (int part = place.node; part < parts; part += place.nodes)
    if (checkpoint.damaged[At(part)]) return true;
  return false;
}

// The disk is the same for all. What another world has written there is taken if its ranks are alike, or cut anew.
void Cluster::Do(int index, const ChooseOnDisk& question) {
  Node& node = nodes_[At(index)];
  if (!node.ComesNext(question.next)) return;
  RestoreFound found{question.next, {}, {}, question.not_above};
  node.loaded.reset();
  const HeldAs place = node.coming.value_or(node.place);
  for (auto checkpoint = disk_.rbegin(); checkpoint != disk_.rend() && found.points.empty(); ++checkpoint) {
    if (checkpoint->id > question.not_above) continue;
    const int nodes = static_cast<int>(checkpoint->damaged.size()), part = place.node % nodes;
    if (nodes != place.nodes && worlds_.alike == Alike::kNot) {
      found.unfit = fmt::format("{}: written by {} nodes", PointName(checkpoint->id), nodes);
      break;
    }
    const bool cut = nodes != place.nodes && CutsAnew();
    if (IsDamagedFor(*checkpoint, place, cut)) {
      found.rejected.push_back(fmt::format("{}: damaged", PointName(checkpoint->id)));
      continue;
    }
    node.loaded = Part{{part, checkpoint->id}, {}};
    for (int rank = 0; !cut && rank < plan_.ranks_per_node; ++rank)
      node.loaded->content.push_back(
          {checkpoint->id, part * plan_.ranks_per_node + rank, nodes * plan_.ranks_per_node});
    found.points = {checkpoint->id};
  }
  Answer(index, std::move(found), chance_.Between(0.01, 0.05));
}

// The checkpoint that was chosen is the new world's; whatever else was written under the old numbers is given up.
void Cluster::TakeNextPlace(Node& node, const std::optional<CheckpointId>& point) {
  node.place = *std::exchange(node.coming, std::nullopt);
  node.said.clear();
  node.keeps.clear();
  node.kept.clear();
  node.secured = {};
  for (Rank& rank : node.ranks)
    for (Slot& slot : rank.slots)
      if (!point || slot.id != *point) slot = {};
}

// One world acts at a time; each of its nodes has a number of its own, and all begin at one step.
void Cluster::CheckWorld(int index) {
  const Node& node = nodes_[At(index)];
  const int count = node.place.nodes;
  if (node.coming) Break(fmt::format("node {} of {} starts, and has not taken its place", node.place.node, count));
  if (worlds_.most > 0 && (count < worlds_.least || count > worlds_.most))
    Break(fmt::format("{} nodes train, of {} to {}", count, worlds_.least, worlds_.most));
  if (running_.LeaveRoomFor({node.epoch, node.place, node.restore})) return;
  for (int machine = 0; machine < machines(); ++machine) {
    const Node& other = nodes_[At(machine)];
    if (machine == index || !HasRanks(machine)) continue;
    if (other.place.nodes != count)
      Break(fmt::format("worlds of {} and {} nodes act at once", count, other.place.nodes));
    if (other.place.node == node.place.node) Break(fmt::format("two nodes have the number {}", node.place.node));
    if (other.restore != node.restore)
      Break(fmt::format("epoch {} begins from {} and {}", node.epoch.value(), PointName(node.restore),
                        PointName(other.restore)));
  }
}

}  // namespace lockstep::control
