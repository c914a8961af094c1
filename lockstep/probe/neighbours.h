// An all-gather around a ring of nodes, over TCP: whether each node reaches the next, how fast, and whether what
// arrives is what was sent. Node i sends to i + 1 and receives from i - 1; in step s it passes on the block of node
// i - s. Every block's content is known to all (pattern.h), so a node passes on a fresh copy: damage is found by the
// node where it arrives, and by nobody behind it. A node that gives up tells the next one why, and is not blamed for
// it.
//
// Nothing waits longer than `wait` (until both neighbours are there), then the budget, or 2 s if it is less, and a
// second. Each payload is timed from its frame to its last byte. Memory: two blocks, 16 MiB. Threads: one of its own to
// receive.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"
#include "lockstep/probe/wire.h"

namespace lockstep::probe {

// For tests: what a fault does to a block on its way out.
using TamperSent = std::function<void(size_t owner, std::span<uint64_t> block)>;

struct NeighboursOptions {
  std::vector<Endpoint> nodes{};  // of the ring, in its order, the same on all; at least 2
  size_t self = 0;                // which of them is this one; it listens there
  int listener = -1;              // a socket that does so already; -1: none
  Seconds wait{10};
  TamperSent tamper{};
};

// neighbours.send (errors: the next node could not be reached or took not all), neighbours.receive (GB/s from the node
// before) and neighbours.bits (errors: words that arrived wrong); `with` is the other node. Requires self <
// nodes.size().
std::vector<Measurement> MeasureNeighbours(const Budget& budget, const NeighboursOptions& options);

}  // namespace lockstep::probe
