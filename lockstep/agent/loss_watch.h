// Ranks whose loss has become no finite number: those that had told a finite one in this epoch. (One that never did may
// not know its loss, or not compute one.) A loss is computed before the update of its step: that of step k vouches for
// the state after k - 1, and for none after k. Looks are rarer than steps may be: of the steps between two looks the
// first is taken for the first bad one. Cost: one pass over the ranks.
//
//   LossWatch losses;
//   samples.losses = losses.Take(epoch, seen);
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/control/link.h"

namespace lockstep::agent {

class LossWatch {
 public:
  struct Seen {
    RankId rank;
    int64_t step = -1;
    double loss = 0;  // NaN: none was told; infinite: it was, and is no finite number
  };
  // Those that are bad now, and those that were so at the look before and are well again.
  std::vector<control::BadLoss> Take(EpochId epoch, const std::vector<Seen>& seen);

 private:
  struct Rank {
    int64_t finite_step = 0;  // newest step with a finite loss
    int64_t bad_since = -1;   // first look at which it was bad
    bool was_finite = false, bad = false;
  };
  EpochId epoch_;
  std::map<RankId, Rank> ranks_;
};

}  // namespace lockstep::agent
