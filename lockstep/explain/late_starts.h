// Where workers begin a step, and who begins late: before that there is nothing that it waits for but its own host,
// which may be loading data.
//
//   begins(op, lane)  what waits for nothing on its worker, where no communication of the worker has ended yet; and the
//                     first forward of the first stage, and of another one for which a receive is known
//   carried(w, step)  of a trace of rows, what the worker ended the step before later than the first one that did: until
//                     then it was at that, and the others were waiting in the next one already
//   late              = delay - carried
//
// In the published trace AR one worker begins each step 37 ms behind the others, and has ended each 37 ms behind them.
#pragma once

#include "lockstep/explain/remedy.h"
#include "lockstep/graph/replay.h"
#include "lockstep/trace/traced_job.h"

namespace lockstep::explain {

graph::Selection StepBegins(const trace::TracedJob& job);

// Of what waits for nothing there, the delays without what was carried over. Profiler files tell it themselves: none.
CellTimes LessCarriedOver(const trace::TracedJob& job, const graph::Selection& begins);

}  // namespace lockstep::explain
