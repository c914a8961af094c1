// The smallest parallel group that holds some ranks: the rule by which ByteRobust evicts (SOSP 2025, section 5). It
// asks for no more than a layout, and pays with machines that are well: all of the group go, though one is to blame.
// Pure. Cost: linear in the ranks given and in the group.
//
//   SharedGroup group = FindSharedGroup(layout, ranks);   // tp2 pp4 dp4: {"tp+pp", 8 ranks} of machines 12 to 15
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/cluster/layout.h"

namespace lockstep::detect {

struct SharedGroup {
  std::string dimensions;  // in which its ranks differ: "pp", "tp+pp"; "": one rank
  std::vector<int> ranks;  // ascending
};

// Requires a valid layout and ranks of it, at least one: those that agree with all of them in every dimension in which
// all of them agree.
SharedGroup FindSharedGroup(const cluster::Layout& layout, std::span<const int> ranks);

}  // namespace lockstep::detect
