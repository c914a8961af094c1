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

struct Renumbered {
  std::vector<RenumberedRow> rows;  // whose number is another now
  size_t left = 0;                  // rows of workers that have too many and lack too many for a look
};

// Gives the rows of a worker, step and type that are fewer than elsewhere, and numbered without a gap, the numbers that
// those ops have in a lane that has all of them, where they fit better: passes by (model chunk, microbatch), where all
// are told apart by it, the order is the same and the lane has some pass of each microbatch that lacks in between.
// Others by time: collectives by their ends in another rank of the step that has all of them, where at most a tenth of
// the distance is left by it; transfers, and collectives where no other rank has the step, by when they would begin by
// the passes around, where at most half is. Cost: cells, and for each such worker and type its rows times those that it
// lacks, up to 2^24.
Renumbered Renumber(NumberedRows numbered, size_t threads = 1);

}  // namespace lockstep::trace
