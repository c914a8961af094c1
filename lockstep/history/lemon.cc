#include "lockstep/history/lemon.h"

#include <algorithm>
#include <tuple>

#include "lockstep/cost/chance.h"

namespace lockstep::history {

std::vector<Lemon> FindLemons(const std::vector<NodeRecord>& nodes, double false_positive_rate) {
  double hours = 0;
  int64_t named = 0;
  for (const NodeRecord& node : nodes) hours += node.hours, named += node.named;
  std::vector<Lemon> lemons;
  if (hours <= 0) return lemons;
  const double limit = false_positive_rate / static_cast<double>(nodes.size());
  for (const NodeRecord& node : nodes) {
    const double share = node.hours / hours, expected = share * static_cast<double>(named);
    if (static_cast<double>(node.named) <= expected) continue;
    const double chance = cost::BinomialAtLeast(named, share, node.named);
    if (chance <= limit) lemons.push_back({node, expected, chance});
  }
  std::sort(lemons.begin(), lemons.end(), [](const Lemon& a, const Lemon& b) {
    return std::tie(a.chance, a.record.node) < std::tie(b.chance, b.record.node);
  });
  return lemons;
}

}  // namespace lockstep::history
