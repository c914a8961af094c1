// Which nodes are lemons: named so much more often than their peers that chance does not explain it.
//
// Rule: were all nodes alike, each of the C namings would strike node i with chance h_i / H (its share of all
// node-hours), so its namings would be Binomial(C, h_i / H). A node is a lemon where P(X >= its namings) is at most the
// false-positive rate divided by the number of nodes (Bonferroni): of clusters without one, no more than that share
// have a node blamed. Pure. Cost: linear.
//
//   FindLemons({{"a", 600, 1}, {"b", 600, 9}, ...}, 0.01)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::history {

struct NodeRecord {
  std::string node;
  double hours = 0;   // as part of a job
  int64_t named = 0;  // incidents that name it for certain
};

struct Lemon {
  NodeRecord record;
  double expected = 0;  // namings, were it like all others
  double chance = 0;    // of so many namings or more, then
};

// Those with the smallest chance first.
std::vector<Lemon> FindLemons(const std::vector<NodeRecord>& nodes, double false_positive_rate);

}  // namespace lockstep::history
