// In which order a stage of a pipeline carries its work out, under each schedule. 1F1B and interleaved: as
// synth/schedule.h has it. ZB-H1 and ZB-2p put gradients of weights off by one or two microbatches per stage. DualPipe
// feeds microbatches from both ends: a rank has a stage of each direction, the even microbatches go up, the odd ones
// down. Pure; deterministic.
#pragma once

#include <vector>

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

enum class Work : uint8_t { kForward, kBackward, kInput, kWeight };  // kBackward: input and weights at once
struct Piece {
  Work work = Work::kForward;
  int chunk = 0;  // of DualPipe the direction
  int microbatch = 0;
  bool joined = false;  // runs at the same time as the piece before it: the hardware overlaps them
};

// Of rank `stage` of the pipeline. Requires CheckSchedule.
std::vector<Piece> OrderOf(const Workload& workload, int stage);

}  // namespace lockstep::plan
