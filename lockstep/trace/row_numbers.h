// Numbers (seq_id) of rows that were counted after other rows of their worker had been lost, or from where a window of
// profiling began: they have no gaps, but a row's number is not that of the same op in other lanes, so that sends would
// meet receives of other microbatches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/trace/fit_numbers.h"
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

struct DoubtfulRow {
  StragglerRow* row;
  uint32_t op, lane;
  Later clock;  // how much later that of its worker may be than the others'
};

struct Renumbered {
  std::vector<RenumberedRow> rows;    // whose number is another now
  std::vector<DoubtfulRow> doubtful;  // that may be of another op of their type, but stay as they are numbered
};

// Gives the rows of a worker, step and type that are fewer than elsewhere, and numbered without a gap, the numbers that
// those ops have in a lane that has all of them, where they fit better: passes by (model chunk, microbatch), where all
// are told apart by it, the order is the same and the lane has some pass of each microbatch that lacks in between.
// Transfers by when they would begin by the passes around, and so collectives where no other rank has the step, where
// at most half of the distance by their numbers is left. Other collectives by their ends, which ranks of the step that
// have all of them share (fit_numbers.h): they are left where none has all but one has more, and where other numbers
// fit about as well. The table has them where they are then. Cost: cells, and for each such worker and type its rows
// times those that it lacks, of which the 512 around the nearest in time are looked at; those of more than 2^24 are
// left.
Renumbered Renumber(NumberedRows& numbered, size_t threads = 1);

}  // namespace lockstep::trace
