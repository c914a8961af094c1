// How the ranks of a job share an epoch: at each step they take the next world * batch places of its order, rank after
// rank. So a cursor is one number, the same for all, and a world of any other size goes on from it without a gap. No
// rank is without an item, unless batches are of one, or the world has grown since the step before.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::feed {

struct StepShare {
  uint64_t position = 0;  // of the rank's first item
  uint64_t items = 0;     // that it takes; 0: fewer items than ranks were left
  uint64_t next = 0;      // the cursor after this step
  bool last = false;      // of the epoch
};

struct EpochCut {
  uint64_t items = 0;  // of the epoch
  uint64_t batch = 1, world = 1;
  bool drop_last = false;

  uint64_t full() const { return batch * world; }
  // Is there no step from `position` on?
  bool IsOver(uint64_t position) const { return position >= items || (drop_last && items - position < full()); }
  // A step that is not full is shared as evenly as can be, the lower ranks having one more.
  StepShare Share(uint64_t position, uint64_t rank) const {
    const uint64_t taken = Taken(items - position), each = taken / world, more = taken % world;
    return {position + rank * each + std::min(rank, more), each + (rank < more ? 1 : 0), position + taken,
            IsOver(position + taken)};
  }

 private:
  // Of what is left, by the next step. The last step but one leaves an item to each rank: one that has none would have
  // no gradient for the others.
  uint64_t Taken(uint64_t left) const {
    const bool strands = !drop_last && batch > 1 && left > full() && left - full() < world;
    return strands ? left - world : std::min(left, full());
  }
};

}  // namespace lockstep::feed
