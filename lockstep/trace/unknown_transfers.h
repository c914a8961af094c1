// Communications of which a member was not recorded: a lost row, a worker or a data-parallel rank without rows. Whoever
// waited for that one seems to transfer, so a slow worker whose rows are lost would make a network look slow. The same
// holds, in part, where a lost row was put back: it began about then.
#pragma once

#include "lockstep/trace/traced_job.h"

namespace lockstep::trace {

// Takes each such transfer as long as what is known of its kind on its stage, else on the others (the median); where
// nothing is known, as the shortest of them; but never longer than it was measured. Counts those that are shortened by
// it. Of a job whose lanes all have the same ops, as rows tell of one, after MeasureParts.
void BoundUnknownTransfers(TracedJob& job);

}  // namespace lockstep::trace
