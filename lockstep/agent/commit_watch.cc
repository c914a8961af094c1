#include "lockstep/agent/commit_watch.h"

#include <algorithm>

#include "lockstep/agent/buffers.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

// Of the rank that ended its newest step first. One that has gone on meanwhile is younger by the steps since.
std::optional<Nanos> StepsEnded(const ls_board& board) {
  std::optional<Nanos> oldest;
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const Nanos end{Load(board.rank[rank].step_end_ns)};
    if (end.value == 0) return std::nullopt;  // no step of this epoch yet
    oldest = std::min(oldest.value_or(end), end);
  }
  return oldest;
}

}  // namespace

const std::optional<CommitWatch::Commit>& CommitWatch::Look(const ls_board& board) {
  const ls_checkpoint committed = ls_committed_here(&board);
  const control::CheckpointId point{EpochId(committed.epoch), committed.step};
  if (committed.epoch == 0) {
    newest_.reset();
  } else if (!newest_ || newest_->point != point) {
    newest_ = {point, StepsEnded(board)};
  }
  return newest_;
}

}  // namespace lockstep::agent
