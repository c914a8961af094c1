// What a node holds, for a world of another size: whether the tensors of all its ranks are one and the same, and which.
// One pass over the content, at the rate of memory; for a thread of its own.
#pragma once

#include <span>
#include <vector>

#include "lockstep/checkpoint/restore.h"
#include "lockstep/client/board.h"
#include "lockstep/client/commit.h"
#include "lockstep/control/link.h"

namespace lockstep::agent {

// Of each of these checkpoints, which the caller has verified. Hash 0: the ranks differ.
std::vector<control::Replica> ReplicasOf(const ls_board& board, std::span<const checkpoint::RankSlots> slots, int node,
                                         const std::vector<checkpoint::Point>& points);

}  // namespace lockstep::agent
