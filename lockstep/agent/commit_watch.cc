#include "lockstep/agent/commit_watch.h"

#include <algorithm>

#include "lockstep/agent/buffers.h"
#include "lockstep/client/commit.h"

namespace lockstep::agent {
namespace {

// Of the rank that ended it first. Who has gone on meanwhile, as all have of a checkpoint that became whole late, ended
// it so many of its mean steps before its newest.
std::optional<Nanos> EndOf(int64_t step, const ls_board& board) {
  std::optional<Nanos> oldest;
  for (uint32_t rank = 0; rank < board.ranks; ++rank) {
    const ls_rank_block& block = board.rank[rank];
    const int64_t newest = Load(block.step_end_ns), steps = Load(block.steps);
    if (newest == 0) return std::nullopt;  // no step of this epoch yet
    const int64_t later = std::clamp<int64_t>(Load(block.step) - step, 0, steps);
    const int64_t mean = steps > 0 ? (newest - Load(block.loop_begin_ns)) / steps : 0;
    const Nanos end{newest - later * mean};
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
    newest_ = {point, EndOf(point.step, board)};
  }
  return newest_;
}

}  // namespace lockstep::agent
