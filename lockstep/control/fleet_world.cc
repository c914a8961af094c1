// Where the first epoch of a world begins that is not the one which wrote the checkpoints (machine_world.cc). What is
// held was written under other numbers, which agents tell. A checkpoint will do if the tensors of all ranks that wrote
// it are one and the same, by the word of those who hold them or keep them for a node that is lost: then any rank's
// part is right for any rank. Of parts that differ, or that nobody has any more, nothing is guessed.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "lockstep/control/fleet.h"

namespace lockstep::control {

bool Fleet::IsAnotherWorld() const {
  const int count = static_cast<int>(nodes_.size());
  for (int i = 0; i < count; ++i) {
    const HeldAs& held = nodes_[static_cast<size_t>(i)].found->held;
    if (held.nodes > 0 && held.node >= 0 && (held.node != i || held.nodes != count)) return true;
  }
  return false;
}

// By the word of any node's ranks: of those that are lost nobody has it.
bool Fleet::IsCutAnew() const {
  const auto says_so = [](const Replica& replica) { return replica.low == kSaidToBeCut; };
  return std::ranges::any_of(nodes_,
                             [&](const Node& node) { return std::ranges::any_of(node.found->replicas, says_so); });
}

Fleet::Events Fleet::ChooseReplica(EpochId next) {
  if (IsCutAnew()) {
    on_disk_or_never_ = true;
    AskOnDisk(next);
    return {};
  }
  std::set<CheckpointId> candidates;
  for (const Node& node : nodes_) candidates.insert(node.found->points.begin(), node.found->points.end());
  std::string unfit;
  for (auto point = candidates.rbegin(); point != candidates.rend(); ++point) {
    if (IsPoisoned(*point)) continue;
    const std::string why = WhyUnfit(*point);
    if (!why.empty()) {
      if (unfit.empty()) unfit = why;
      continue;
    }
    std::map<int, std::pair<int, FetchKept>> fetches;
    bool lacking = false;
    for (size_t i = 0; i < nodes_.size() && !lacking; ++i) {
      if (Has(nodes_[i], *point)) continue;
      const auto fetch = ReplicaFor(next, static_cast<int>(i), *point);
      lacking = !fetch;
      if (fetch) fetches.emplace(static_cast<int>(i), *fetch);
    }
    if (!lacking && fetches.empty()) return {RestoreChosen{next, *point, rejected_, {}}};
    // Nobody is asked for one that not all can have: the answers would ask for it again.
    for (const auto& [node, fetch] : fetches) {
      const std::optional<FetchKept>& asked = nodes_[static_cast<size_t>(node)].fetch;
      if (!lacking && (!asked || asked->point != *point)) Ask(node, fetch.first, fetch.second);
    }
    if (!lacking) return {};
    unfit = "a machine that joins can't have the checkpoint of another: nobody offers it";
  }
  if (!unfit.empty()) return {RestoreChosen{next, {}, rejected_, unfit}};
  AskOnDisk(next);
  return {};
}

// Empty: it will do.
std::string Fleet::WhyUnfit(const CheckpointId& point) const {
  int parts = 0;
  std::set<int> known, sizes;  // sizes: of the worlds in which it is held
  std::set<std::pair<uint64_t, uint64_t>> contents;
  for (const Node& node : nodes_) {
    const auto& [held, points] = std::tie(node.found->held, node.found->points);
    if (held.node >= 0) parts = std::max(parts, held.nodes);
    if (held.node >= 0 && std::ranges::find(points, point) != points.end()) sizes.insert(held.nodes);
    for (const Replica& replica : node.found->replicas) {
      if (replica.point != point) continue;
      known.insert(replica.node);
      contents.insert({replica.low, replica.high});
    }
  }
  if (contents.contains({kSaidToBeReplica, kSaidToBeReplica})) return "";
  const char* other = "a world of another size can't take the checkpoint of step";
  if (contents.size() > 1 || contents.contains({0, 0}))
    return fmt::format(
        "{} {}: its ranks differ, as those of a sharded model do (where any "
        "rank's state is right for any other all the same, give Checkpoint replicas=True)",
        other, point.step);
  // It was written in one world: for the other it was found to do by a coordinator whose journal lacks that, and who
  // has taken his place there says no more what he had.
  const bool was_taken = sizes.size() > 1;
  if (was_taken || static_cast<int>(known.size()) == parts) return "";
  return fmt::format("{} {}: of {} of {} nodes nobody knows what they had", other, point.step,
                     parts - static_cast<int>(known.size()), parts);
}

std::optional<std::pair<int, FetchKept>> Fleet::ReplicaFor(EpochId next, int node, const CheckpointId& point) const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const int keeper = static_cast<int>(i);
    if (!keeps_at_[i] || keeper == node || not_to_be_had_.contains({node, keeper, point})) continue;
    for (const KeptFor& kept : nodes_[i].found->kept)
      if (kept.point == point)
        return std::pair(keeper, FetchKept{next, point, keeps_at_[i]->host, keeps_at_[i]->port, kept.node});
  }
  return std::nullopt;
}

}  // namespace lockstep::control
