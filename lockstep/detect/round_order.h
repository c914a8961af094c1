// Rounds in an order in which every rank went through its own. By time there is none: who is early opens a round before
// the one has ended that holds the others up, clocks of hosts differ, and launches run ahead.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/detect/comm_rounds.h"

namespace lockstep::detect {

// Indices of `rounds`, each once. Where ranks went through some the other way round than other ranks did, as when two
// are under way at once, those come first to which the last member came sooner.
std::vector<uint32_t> OrderOfRanks(const std::vector<Round>& rounds);

}  // namespace lockstep::detect
