// The newest checkpoint that is whole on all ranks of a node, and when they had ended its step: noted when it is first
// seen, for the board knows of each rank's newest step only, and of none once the next epoch has begun.
// Cost: one pass over the ranks.
//
//   CommitWatch commits;
//   commits.Look(board);  // with every tick
#pragma once

#include <optional>

#include "lockstep/base/units.h"
#include "lockstep/client/board.h"
#include "lockstep/control/events.h"

namespace lockstep::agent {

class CommitWatch {
 public:
  struct Commit {
    control::CheckpointId point;
    std::optional<Nanos> ended{};  // none: it was whole before anybody looked, and no step has ended since
  };
  // none: no checkpoint is whole.
  const std::optional<Commit>& Look(const ls_board& board);

 private:
  std::optional<Commit> newest_;
};

}  // namespace lockstep::agent
