#include "lockstep/control/keepers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace lockstep::control {
namespace {

using cluster::Dimension;

// By node, the groups that it has ranks in; and who has ranks in each of them.
struct Groups {
  std::vector<std::vector<int>> of;  // ascending
  std::vector<std::vector<size_t>> members;

  void Add(size_t node, int group) {
    if (static_cast<size_t>(group) == members.size()) members.emplace_back();
    std::vector<size_t>& nodes = members[static_cast<size_t>(group)];
    if (!nodes.empty() && nodes.back() == node) return;
    nodes.push_back(node);
    of[node].push_back(group);
  }

  bool Share(size_t a, size_t b) const {
    auto at = of[b].begin();
    return std::any_of(of[a].begin(), of[a].end(), [&](int group) {
      at = std::lower_bound(at, of[b].end(), group);
      return at != of[b].end() && *at == group;
    });
  }
};

Groups GroupsOf(const cluster::Layout& layout, const std::vector<NodeSpec>& nodes) {
  Groups groups;
  groups.of.resize(nodes.size());
  std::map<std::pair<Dimension, RankId>, int> known;  // by dimension and first rank
  int first = 0;
  for (size_t node = 0; node < nodes.size(); first += nodes[node++].ranks) {
    for (const Dimension dimension : {Dimension::kTp, Dimension::kPp, Dimension::kDpCp}) {
      if (layout.Size(dimension) == 1) continue;
      for (int rank = first; rank < first + nodes[node].ranks; ++rank) {
        const RankId first_of_group = layout.FirstOfGroup(dimension, RankId(rank));
        const int number = static_cast<int>(known.size());
        groups.Add(node, known.try_emplace({dimension, first_of_group}, number).first->second);
      }
    }
    std::sort(groups.of[node].begin(), groups.of[node].end());
  }
  return groups;
}

// Finds each node a keeper with which it shares no group, each a different one: a matching. The nearest that keeps for
// nobody yet, and where there is none, by augmenting paths: in a regular layout hardly anybody has to move over.
class Matching {
 public:
  explicit Matching(const Groups& groups)
      : groups_(groups), count_(groups.of.size()), keeper_(count_, -1), ward_(count_, -1), near_to_(count_, 0) {}

  // Empty: there is none.
  std::vector<int> Find() {
    for (size_t i = 0; i < count_; ++i) {
      tried_.assign(count_, false);
      if (!Place(i)) return {};
    }
    return keeper_;
  }

 private:
  bool Place(size_t node) {
    if (const std::optional<size_t> free = NearestFree(node)) return Take(node, *free);
    for (size_t distance = 1; distance < count_; ++distance) {
      const size_t other = (node + distance) % count_;
      if (tried_[other] || groups_.Share(node, other)) continue;
      tried_[other] = true;
      if (Place(static_cast<size_t>(ward_[other]))) return Take(node, other);
    }
    return false;
  }

  bool Take(size_t node, size_t other) {
    ward_[other] = static_cast<int>(node);
    keeper_[node] = static_cast<int>(other);
    return true;
  }

  std::optional<size_t> NearestFree(size_t node) {
    ++mark_;
    for (const int group : groups_.of[node])
      for (const size_t member : groups_.members[static_cast<size_t>(group)]) near_to_[member] = mark_;
    for (size_t distance = 1; distance < count_; ++distance) {
      const size_t other = (node + distance) % count_;
      if (ward_[other] < 0 && near_to_[other] != mark_) return other;
    }
    return std::nullopt;
  }

  const Groups& groups_;
  const size_t count_;
  std::vector<int> keeper_, ward_;
  std::vector<uint64_t> near_to_;  // mark_: it shares a group with the node that is looked at
  uint64_t mark_ = 0;
  std::vector<bool> tried_;
};

std::vector<int> Neighbours(size_t nodes) {
  std::vector<int> keepers;
  for (size_t i = 0; i < nodes; ++i) keepers.push_back(static_cast<int>((i + 1) % nodes));
  return keepers;
}

}  // namespace

std::vector<int> KeepersOf(const std::vector<NodeSpec>& nodes, const std::optional<cluster::Layout>& layout) {
  if (nodes.size() < 2) return std::vector<int>(nodes.size(), -1);
  const int ranks =
      std::accumulate(nodes.begin(), nodes.end(), 0, [](int sum, const NodeSpec& node) { return sum + node.ranks; });
  if (!layout || layout->WorldSize() != ranks) return Neighbours(nodes.size());
  const std::vector<int> keepers = Matching(GroupsOf(*layout, nodes)).Find();
  return keepers.empty() ? Neighbours(nodes.size()) : keepers;
}

std::vector<int> KeepersOf(const JobSpec& job) {
  if (job.nodes.empty()) return {-1};
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(job.layout);
  return KeepersOf(job.nodes, layout.ok() ? std::optional(*layout) : std::nullopt);
}

}  // namespace lockstep::control
