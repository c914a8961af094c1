// A checkpoint that lacks only copies which live ranks are about to make: worth a moment before they are killed, since
// without it the step behind it is done again.
#pragma once

#include <set>

#include "lockstep/base/units.h"
#include "lockstep/client/board.h"

namespace lockstep::agent {

// Is a checkpoint of the acting epoch, newer than the newest that is whole on this node, still missing on some rank
// that can make it, and on no rank that can't? `gone`: the ranks of this node (0-based there) that will copy nothing
// more.
bool CheckpointIsNear(const ls_board& board, const std::set<int>& gone);

// How long to wait for it at most: a quarter of the step that it would save, and a second.
Seconds PatienceForCheckpoint(const ls_board& board);

}  // namespace lockstep::agent
