// Peer memory in the simulated cluster: who keeps what for whom, and what is left of it when a machine is lost.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/client/commit.h"
#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {

// The keeper is reached by a way of its own, which does not break here; it may be dead, or another machine.
void Cluster::Do(int index, const FetchKept& question) {
  Node& node = nodes_[At(index)];
  if (!node.ComesNext(question.next)) return;
  const Node& keeper = nodes_[At(question.port)];
  const bool there = !keeper.dead && std::find(keeper.keeps.begin(), keeper.keeps.end(),
                                               KeptFor{index, question.point}) != keeper.keeps.end();
  RestoreFound found{.epoch = question.next, .points = {}, .rejected = {}, .fetched = question.point};
  if (there) found.points = {question.point};
  node.loaded = there ? std::optional(question.point) : std::nullopt;
  SaySoon(index, chance_.Between(0.01, 0.1), found);
}

void Cluster::GiveUpKept(Node& node) const {
  const CheckpointId committed = node.committed.value_or(CheckpointId{EpochId(0), -1});
  const EpochId epoch = std::max(node.epoch, node.published_for);
  std::erase_if(node.keeps, [&](const KeptFor& kept) {
    return ls_can_give_up({kept.point.epoch.value(), kept.point.step}, {committed.epoch.value(), committed.step},
                          node.dead_step, epoch.value());
  });
}

// What is whole here goes to the keeper, which may be slow, or not there.
void Cluster::SendToKeeper(int index) {
  if (plan_.nodes == 1) return;
  for (const CheckpointId& point : Points(nodes_[At(index)], false)) {
    const std::vector<CheckpointId>& kept = nodes_[At(index)].kept;
    if (std::find(kept.begin(), kept.end(), point) != kept.end() || chance_.Hits(0.05)) continue;
    const int keeper = KeeperOf(index);
    // Of many nodes some keeper is always slow; as slow as a step or more is then enough.
    const bool slow = chance_.Hits(plan_.nodes < kMany ? 0.2 : 0.01);
    const Seconds sending = slow ? chance_.Between(0.1, plan_.nodes < kMany ? 0.8 : 0.3) : chance_.Between(0.001, 0.03);
    schedule_.In(sending, [this, index, keeper, point, own = machine(index), its = machine(keeper)] {
      Node &from = nodes_[At(index)], &to = nodes_[At(keeper)];
      if (own != machine(index) || its != machine(keeper) || from.dead || to.dead) return;
      const std::vector<CheckpointId> still = Points(from);
      if (std::find(still.begin(), still.end(), point) == still.end()) return;
      if (std::find(to.keeps.begin(), to.keeps.end(), KeptFor{index, point}) == to.keeps.end())
        to.keeps.push_back({index, point});
      if (std::find(from.kept.begin(), from.kept.end(), point) == from.kept.end()) from.kept.push_back(point);
    });
  }
}

// Every node has it whole, or its keeper has.
bool Cluster::CanGather(const CheckpointId& point, int without) const {
  for (int index = 0; index < plan_.nodes; ++index) {
    const Node &node = nodes_[At(index)], &keeper = nodes_[At(KeeperOf(index))];
    const std::vector<CheckpointId> points = Points(node);
    const bool here = !node.dead && index != without && std::find(points.begin(), points.end(), point) != points.end();
    const bool kept = !keeper.dead && KeeperOf(index) != without && KeeperOf(index) != index &&
                      std::find(keeper.keeps.begin(), keeper.keeps.end(), KeptFor{index, point}) != keeper.keeps.end();
    if (!here && !kept) return false;
  }
  return true;
}

// A committed checkpoint outlives the loss of one machine; of what the epoch began from, the copies may have gone with
// the machine before.
void Cluster::CheckLoss(int index) {
  const Node& keeper = nodes_[At(KeeperOf(index))];
  std::optional<CheckpointId> committed;
  EpochId epoch;
  bool others_live = true;
  for (const Node& node : nodes_) {
    const bool lost = &node == &nodes_[At(index)];
    if (!node.dead && !lost) committed = std::max(committed, node.committed);
    epoch = std::max(epoch, node.epoch);
    others_live = others_live && (lost || !node.dead);
  }
  const bool kept = committed && committed->epoch == epoch && !keeper.dead && KeeperOf(index) != index && !corrupted_;
  if (kept && others_live && (!newest_whole_ || *newest_whole_ < *committed))
    Break(fmt::format("{} was committed, and is gone with one machine", PointName(committed)));
}

void Cluster::NoteWhatIsLeft(int without) {
  std::set<CheckpointId> candidates;
  for (const Node& node : nodes_) {
    for (const CheckpointId& point : Points(node)) candidates.insert(point);
    for (const KeptFor& kept : node.keeps) candidates.insert(kept.point);
  }
  newest_whole_.reset();
  for (const CheckpointId& point : candidates)
    if (CanGather(point, without)) newest_whole_ = point;
}

}  // namespace lockstep::control
