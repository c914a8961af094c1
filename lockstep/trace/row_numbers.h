// Numbers (seq_id) of rows that were counted after other rows of their worker had been lost, or from where a window of
// profiling began: they have no gaps, but a row's number is not that of the same op in other lanes, so that sends would
// meet receives of other microbatches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/trace/recorded_times.h"

namespace lockstep::trace {

struct NumberedRows {
  std::span<const JobOp> ops;
  std::span<const JobLane> lanes;
  std::span<const uint32_t> first_lane;  // of each step, and one past the last
  std::vector<StragglerRow*> rows;       // [op * lanes + lane]; null: none
};

struct RenumberedRow {
  StragglerRow* row;
  uint16_t sequence;  // as it was
};

// Gives the rows of a worker, step and type that are fewer than elsewhere, and numbered without a gap, the numbers that
// those ops have in a lane that has all of them: passes by (model chunk, microbatch), where all are told apart by it,
// the order is the same and the lane has some pass of each microbatch that lacks in between; transfers and collectives
// by the time that they have from the passes around, where at most half of the distance is left by it. Answers those
// whose number is another now. Cost: cells, and for each such worker and type its rows times those that it lacks.
std::vector<RenumberedRow> Renumber(NumberedRows numbered, size_t threads = 1);

}  // namespace lockstep::trace
