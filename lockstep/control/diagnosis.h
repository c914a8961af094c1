// What the nodes' tests of their own machines (lockstep/probe) say together, as findings. Pure.
//
// Certain, so that a node may be evicted for it, is only what one node has against itself or against the others to the
// bit: a wrong checksum, damaged words, a disk that is full. A rate below what healthy peers reach is, if their spread
// was learnt and not assumed. What more than half of the nodes find wrong with themselves is no one's fault. Nobody is
// named for not coming who was not in the ring of its neighbours.
#pragma once

#include <string>
#include <vector>

#include "lockstep/incident/incident.h"

namespace lockstep::control {

// `reports`: what `lockstep probe --json` prints, one of each node. One that can't be read says nothing.
std::vector<incident::Finding> FindingsOfTests(const std::vector<std::string>& reports);

}  // namespace lockstep::control
