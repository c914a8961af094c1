// Rows that a tracer lost, put back where the rest of their worker's rows says that they were. A lost pass would else
// take no time and a lost member of a group keep nobody waiting: a slow worker would cost less than it does. And
// without one whole lane nothing says in which order ops run.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/trace/recorded_times.h"

namespace lockstep::trace {

struct LostRow {
  uint32_t op = 0, lane = 0;
  float start = 0, end = 0;  // s
};

// Lost is a collective or an optimizer that another rank has in the same step, and a pass or a transfer
// - where its worker has a later one of its type in the step, or
// - where its lane has passes that go as far in the step, and another rank has that op in it (in a step of one rank:
// its
//   lane has passes of that direction),
// if it was within what was recorded of the step (lost_row_times.h). So nothing is lost where a lane has fewer
// microbatches, where a step has no backward pass, and before and behind a window of profiling that begins or ends in
// the middle of a step; nor a pause (gc); nor where as many of a worker's rows of the step would be lost as are there.
// Rows in doubt are there, and lost too: what is answered of them says where they were.
// The same on any number of threads. Cost: cells, and for each lost row a search among the ops of its stage.
std::vector<LostRow> FindLostRows(const RecordedTimes& recorded, size_t threads = 1);

}  // namespace lockstep::trace
