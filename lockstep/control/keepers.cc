#include "lockstep/control/keepers.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace lockstep::control {
namespace {

using cluster::Dimension;

// The groups that a node has ranks in, each named by its dimension and first rank; sorted.
using Groups = std::vector<std::pair<Dimension, int>>;

Groups GroupsOf(const cluster::Layout& layout, int first, int ranks) {
  Groups groups;
  for (const Dimension dimension : {Dimension::kTp, Dimension::kPp, Dimension::kDpCp}) {
    if (layout.Size(dimension) == 1) continue;
    for (int rank = first; rank < first + ranks; ++rank)
      groups.emplace_back(dimension, layout.Group(dimension, RankId(rank)).front().value());
  }
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  return groups;
}

bool Share(const Groups& a, const Groups& b) {
  auto at = b.begin();
  return std::any_of(a.begin(), a.end(), [&](const auto& group) {
    at = std::lower_bound(at, b.end(), group);
    return at != b.end() && *at == group;
  });
}

// Finds each node a keeper with which it shares no group, each a different one: a matching, by augmenting paths. The
// nearest are tried first, so in a regular layout hardly anybody has to move over.
class Matching {
 public:
  explicit Matching(const std::vector<Groups>& nodes)
      : nodes_(nodes), keeper_(nodes.size(), -1), ward_(nodes.size(), -1) {}

  // Empty: there is none.
  std::vector<int> Find() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      tried_.assign(nodes_.size(), false);
      if (!Place(i)) return {};
    }
    return keeper_;
  }

 private:
  bool Place(size_t node) {
    for (size_t distance = 1; distance < nodes_.size(); ++distance) {
      const size_t other = (node + distance) % nodes_.size();
      if (tried_[other] || Share(nodes_[node], nodes_[other])) continue;
      tried_[other] = true;
      if (ward_[other] >= 0 && !Place(static_cast<size_t>(ward_[other]))) continue;
      ward_[other] = static_cast<int>(node);
      keeper_[node] = static_cast<int>(other);
      return true;
    }
    return false;
  }

  const std::vector<Groups>& nodes_;
  std::vector<int> keeper_, ward_;
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
  std::vector<Groups> groups;
  int first = 0;
  for (const NodeSpec& node : nodes) {
    groups.push_back(GroupsOf(*layout, first, node.ranks));
    first += node.ranks;
  }
  const std::vector<int> keepers = Matching(groups).Find();
  return keepers.empty() ? Neighbours(nodes.size()) : keepers;
}

std::vector<int> KeepersOf(const JobSpec& job) {
  if (job.nodes.empty()) return {-1};
  const absl::StatusOr<cluster::Layout> layout = cluster::LayoutFromJson(job.layout);
  return KeepersOf(job.nodes, layout.ok() ? std::optional(*layout) : std::nullopt);
}

}  // namespace lockstep::control
