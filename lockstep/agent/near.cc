#include "lockstep/agent/near.h"

#include <algorithm>

#include "lockstep/agent/buffers.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {

bool CheckpointIsNear(const ls_board& board, const std::set<int>& gone) {
  const uint64_t epoch = Load(board.epoch);
  const ls_checkpoint whole = ls_newest_committed(&board, 0);
  const auto can_become_whole = [&](ls_checkpoint id) {
    return !ls_dead(&board, epoch, id) &&
           std::all_of(gone.begin(), gone.end(), [&](int rank) { return ls_slot_find(&board.rank[rank], id) >= 0; });
  };
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    for (const ls_slot& slot : board.rank[rank].slot) {
      const ls_slot_view view = ls_slot_read(&slot);
      if (view.changing || view.state != LS_SLOT_DONE || view.id.epoch != epoch || !ls_newer(view.id, whole)) continue;
      if (can_become_whole(view.id) && !ls_committed(&board, view.id)) return true;
    }
  }
  return false;
}

Seconds PatienceForCheckpoint(const ls_board& board) {
  int64_t step_ns = 0;
  for (uint32_t rank = 0; rank < board.ranks; ++rank) step_ns = std::max(step_ns, Load(board.rank[rank].step_time_ns));
  return Seconds{std::min(0.25e-9 * static_cast<double>(step_ns), 1.0)};
}

}  // namespace lockstep::agent
