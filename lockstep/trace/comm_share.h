// How much of the time ranks spend in collectives.
#pragma once

#include <optional>

#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

// In the mean over ranks, of the time from a rank's first collective in the log to its last end: the share in which one
// or more were under way, from their launch on. A collective that stands for others which are not told counts as often,
// as if none of these overlapped. None: no rank has two that have ended.
std::optional<double> ShareInCollectives(const CommLog& log);

}  // namespace lockstep::trace
