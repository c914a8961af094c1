// Groups whose ranks pass something around, as context parallelism does with keys and values. They send and receive as
// the stages of a pipeline do, but are none.
//
// A group is a ring if each of its ranks sends to one and receives from one other; or, of two ranks, if what a rank
// sends does not depend on what it receives: it computes nothing between the two, as a last stage does.
#pragma once

#include <vector>

#include "lockstep/trace/kineto.h"
#include "lockstep/trace/kineto_steps.h"

namespace lockstep::trace {

// [rank][group of the rank], by one step of each rank.
std::vector<std::vector<bool>> FindRings(const std::vector<KinetoRank>& ranks,
                                         const std::vector<const RankStep*>& steps);

}  // namespace lockstep::trace
