// Several nodes that slow ways surround (slow_ways.h): what joins them to all others is slow, say the uplinks of their
// leaf. No topology is asked for.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lockstep/detect/slow_ways.h"

namespace lockstep::detect {

// Which of the ways between the nodes of a block and all others are slow: all, those from it, those to it.
enum class Crossing : uint8_t { kBoth, kOut, kIn };

struct Block {
  std::set<std::string> nodes;
  Crossing crossing = Crossing::kBoth;

  bool Covers(const std::string& from, const std::string& to) const {
    const bool out = nodes.contains(from), in = nodes.contains(to);
    return out != in && (crossing == Crossing::kBoth || (crossing == Crossing::kOut) == out);
  }
};

// Nodes that fine ways join, two or more of them, where ways between several pairs of nodes are slow by it and no fine
// one crosses in that direction. Of those with the same slow ways around them the smallest, and equal ones all; none
// where a single node would do. Empty where the host of a rank is not in `hosts`.
// Cost: fine ways times the nodes that slow ways begin or end at, of these at most 64.
std::vector<Block> FindBlocks(const Ways& ways, const std::map<int, std::string>& hosts);

}  // namespace lockstep::detect
