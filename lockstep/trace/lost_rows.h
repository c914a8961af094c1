// Rows that a tracer lost, put back where the rest of their worker's rows says that they were. A lost pass would else
// take no time and a lost member of a group keep nobody waiting: a slow worker would cost less than it does. And
// without one whole lane nothing says in which order ops run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// What was recorded: [op * lanes + lane], s; NaN: no row. Ops of a stage stand together.
struct RecordedTimes {
  std::span<const JobOp> ops;
  std::span<const JobLane> lanes;
  std::span<const uint32_t> first_lane;  // of each step, and one past the last
  std::vector<float> starts, ends;
};

struct LostRow {
  uint32_t op = 0, lane = 0;
  float start = 0, end = 0;  // s
};

// Lost is a pass or a transfer where its lane goes on to a later one, and a collective or an optimizer that another
// rank has in the same step; not a pause (gc), and nothing where more of a worker's rows of the step are lost than are
// there. A lane with fewer microbatches has lost nothing. It began, and ended, as far from the nearest begin or end of
// its worker as in other lanes: of the same rank in the steps around, then of other ranks of the step (median); a pass
// takes no longer than others of its worker there. Cost: that of the lost rows, each by the ops of its stage.
std::vector<LostRow> FindLostRows(const RecordedTimes& recorded);

}  // namespace lockstep::trace
