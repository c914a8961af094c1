// Peer memory in the simulated cluster: who keeps what for whom, and what is left of it when a machine is lost.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/client/commit.h"
#include "lockstep/control/simulation_cluster.h"

namespace lockstep::control {
namespace {

bool Contains(const std::vector<CheckpointId>& points, const CheckpointId& point) {
  return std::find(points.begin(), points.end(), point) != points.end();
}

}  // namespace

bool Cluster::HasPart(const Node& node, int of, const CheckpointId& point) const {
  return !node.dead && std::any_of(node.keeps.begin(), node.keeps.end(),
                                   [&](const Part& part) { return part.of == KeptFor{of, point}; });
}

// The keeper is reached by a way of its own, which does not break here; it may be dead, or another machine.
void Cluster::Do(int index, const FetchKept& question) {
  Node& node = nodes_[At(index)];
  if (!node.ComesNext(question.next)) return;
  const Node& keeper = nodes_[At(question.port)];
  const KeptFor wanted{question.part < 0 ? node.place.node : question.part, question.point};
  RestoreFound found{.epoch = question.next, .points = {}, .rejected = {}, .fetched = question.point};
  node.loaded.reset();
  for (const Part& part : keeper.keeps)
    if (!keeper.dead && part.of == wanted) node.loaded = part;
  if (node.loaded && node.loaded->corrupt) {
    found.rejected = {"a copy's CRC is wrong"};
    node.loaded.reset();
  }
  if (node.loaded) found.points = {question.point};
  Answer(index, std::move(found), chance_.Between(0.01, 0.1));
}

void Cluster::GiveUpKept(Node& node) const {
  const CheckpointId committed = node.committed.value_or(CheckpointId{EpochId(0), -1});
  const EpochId epoch = std::max(node.epoch, node.published_for);
  // As keep/store.cc has it.
  const bool some_came =
      std::ranges::any_of(node.keeps, [&](const Part& part) { return part.of.point.epoch >= epoch; });
  if (!some_came && committed.epoch < epoch) return;
  std::erase_if(node.keeps, [&](const Part& part) {
    const CheckpointId& point = part.of.point;
    return ls_can_give_up({point.epoch.value(), point.step}, {committed.epoch.value(), committed.step}, node.dead_step,
                          epoch.value());
  });
}

// The node after it in the same world; -1: it is not there.
int Cluster::KeeperOf(const Node& node) const {
  if (node.place.nodes < 2) return -1;
  const HeldAs place{(node.place.node + 1) % node.place.nodes, node.place.nodes};
  if (place.node < nodes())
    if (const Node& likely = nodes_[At(world_[At(place.node)])]; !likely.dead && likely.place == place)
      return world_[At(place.node)];
  for (int machine = 0; machine < machines(); ++machine)
    if (const Node& other = nodes_[At(machine)]; !other.dead && other.place == place) return machine;
  return -1;
}

// What the acting epoch has made whole here goes to the keeper, which may be slow, or not there. Neither looks at CRCs:
// who fetches it does.
void Cluster::SendToKeeper(int index) {
  const int keeper = KeeperOf(nodes_[At(index)]);
  if (keeper < 0) return;
  for (const CheckpointId& point : Points(nodes_[At(index)], false)) {
    if (point.epoch != nodes_[At(index)].epoch) continue;
    if (Contains(nodes_[At(index)].kept, point) || chance_.Hits(0.05)) continue;
    // Of many nodes some keeper is always slow; as slow as a step or more is then enough.
    const bool slow = chance_.Hits(plan_.nodes < kMany ? 0.2 : 0.01);
    const Seconds sending = slow ? chance_.Between(0.1, plan_.nodes < kMany ? 0.8 : 0.3) : chance_.Between(0.001, 0.03);
    schedule_.In(sending, [this, index, keeper, point, own = nodes_[At(index)].place, its = nodes_[At(keeper)].place] {
      Node &from = nodes_[At(index)], &to = nodes_[At(keeper)];
      if (from.dead || to.dead || own != from.place || its != to.place) return;
      if (!Contains(Points(from, false), point)) return;
      if (!HasPart(to, own.node, point))
        to.keeps.push_back({{own.node, point}, ContentOf(from, point), !HasWhole(from, point)});
      GiveUpKept(to);
      if (!Contains(from.kept, point)) from.kept.push_back(point);
    });
  }
}

std::vector<Content> Cluster::ContentOf(const Node& node, const CheckpointId& point) const {
  std::vector<Content> content;
  for (const Rank& rank : node.ranks)
    for (const Slot& slot : rank.slots)
      if (slot.id == point) content.push_back(slot.content);
  return content;
}

// Every node has it whole, or, where keepers count, its keeper has.
bool Cluster::CanGather(const CheckpointId& point, bool from_keepers) const {
  for (int index = 0; index < nodes(); ++index) {
    const Node& node = nodes_[At(world_[At(index)])];
    const int keeper = (index + 1) % nodes();
    const bool kept = from_keepers && keeper != index && HasPart(nodes_[At(world_[At(keeper)])], index, point);
    if (!kept && (node.dead || !Contains(Points(node), point))) return false;
  }
  return true;
}

// What is left for the coming epoch to begin from. A copy that comes to a keeper after its node has answered is not
// asked for: of what lies with keepers, only what was committed counts.
void Cluster::NoteWhatIsLeft() {
  std::set<CheckpointId> candidates;
  std::optional<CheckpointId> committed;
  for (const int machine : world_) {
    committed = std::max(committed, nodes_[At(machine)].committed);
    for (const CheckpointId& point : Points(nodes_[At(machine)])) candidates.insert(point);
    for (const Part& part : nodes_[At(machine)].keeps) candidates.insert(part.of.point);
  }
  const bool known = IsKnownWorld();
  newest_whole_.reset();
  for (const CheckpointId& point : candidates)
    if (known ? CanGather(point, point <= committed) : CanTake(point)) newest_whole_ = point;
}

// A committed checkpoint outlives the loss of one machine, and the coming of any: this one, if these are lost, or none.
// That holds until the loop of the next epoch begins: of what it began from, the copies may have gone with the machine
// before.
std::optional<CheckpointId> Cluster::MustOutlive(const std::set<int>& lost) const {
  if (lost.size() > 1 || corrupted_) return std::nullopt;
  CheckpointId secured;
  EpochId looped;
  for (const int machine : world_) looped = std::max(looped, nodes_[At(machine)].looped);
  for (const int machine : world_) {
    const Node& node = nodes_[At(machine)];
    if (lost.contains(machine)) continue;
    if (node.dead || node.looped != looped) return std::nullopt;  // it was not in that loop
    secured = std::max(secured, node.secured);
  }
  const bool kept = secured.step >= 0 && secured.epoch == looped && nodes() > 1;
  return kept ? std::optional(secured) : std::nullopt;
}

void Cluster::CheckLeft(const std::optional<CheckpointId>& must) {
  if (must && (!newest_whole_ || *newest_whole_ < *must))
    Break(fmt::format("{} was committed, and is gone with one machine", PointName(must)));
}

}  // namespace lockstep::control
