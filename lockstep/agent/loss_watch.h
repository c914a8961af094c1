// Ranks whose loss has become no finite number: those that had told a finite one, in this epoch or in one before it.
// (One that never did may not know its loss, or not compute one; nor is anything wrong before the first step at which
// it ever did.) A loss is computed before the update of its step: that of step k vouches for
// the state after k - 1, and for none after k. Looks are rarer than steps may be, and an agent that takes over has seen
// none: which steps had a finite loss the ranks keep themselves. Cost: one pass over the ranks.
//
//   LossWatch losses;
//   samples.losses = losses.Take(epoch, seen);
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/control/link.h"

namespace lockstep::agent {

class LossWatch {
 public:
  struct Seen {
    RankId rank;
    int64_t step = -1;
    double loss = 0;                                // NaN: none was told; infinite: it was, and is no finite number
    int64_t first_finite = -1, newest_finite = -1;  // steps of this epoch whose loss was; -1: none
  };
  // Those that are bad now, and those that were so at the look before and are well again.
  std::vector<control::BadLoss> Take(EpochId epoch, const std::vector<Seen>& seen);
  // Where the finite losses end of those that were bad at the newest look: what was saved from there on may be bad.
  std::optional<control::CheckpointId> BadFrom() const;

 private:
  struct Rank {
    std::optional<control::CheckpointId> finite;  // newest step with a finite loss
    int64_t first_finite = -1;                    // the first one ever
    int64_t bad_since = -1;                       // first look at which it was bad, since a finite loss
    bool bad = false;
  };
  EpochId epoch_;
  std::map<RankId, Rank> ranks_;
};

}  // namespace lockstep::agent
