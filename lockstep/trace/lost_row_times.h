// When ops of which the rows were lost began and ended.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/trace/recorded_times.h"

namespace lockstep::trace {

struct LostRow;

// A communication ended when the other members of its group did: the same collective of the other ranks, the other end
// of a transfer; up to what usually lies between, in the steps around. All else is as far from the nearest begin or end
// of its worker as in other lanes: of the same rank in the steps around, then of other ranks of the step (median). A
// pass takes no longer than others of its worker there. Safe to ask from many threads.
class LostRowTimes {
 public:
  LostRowTimes(const RecordedTimes& recorded, const OpIndex& index);

  // Of those ops of a worker in a step: but for passes and transfers that were more than a twentieth of their time
  // before the first begin or behind the last end of the step. What is placed begins and ends between those.
  std::vector<LostRow> Of(int stage, size_t step, uint32_t lane, const std::vector<uint32_t>& ops) const;

 private:
  const RecordedTimes& recorded_;
  const OpIndex& index_;
  std::vector<std::vector<uint32_t>> lane_of_;       // [step][dp]
  std::vector<float> begins_, ends_;                 // s, of steps
  std::vector<std::vector<uint32_t>> first_donors_;  // [op]: some lanes that have it

  friend class WorkerTimes;
};

}  // namespace lockstep::trace
