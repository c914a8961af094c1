// Which segments of a stage's compute are of one kind, so that one tells how long another usually takes.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/trace/kineto_steps.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::trace {

// Segments, ascending.
using SegmentKind = std::vector<size_t>;

// Of a pipeline those between transfers of the same kinds, of whatever microbatch. Else each is alone. types: of the
// form's communications.
std::vector<SegmentKind> KindsByTransfers(const RoleForm& form, const std::vector<OpType>& types);

// What a segment takes of its rank's step, in the median; and by which share of it that may be off by chance, as steps
// and ranks vary.
struct UsualTime {
  double share = 0, error = 0;
};
// shares: of one segment, by rank and step; of fewer than four nobody knows how they vary.
UsualTime UsualTimeOf(const std::vector<double>& shares);

// Of a kind those that take clearly longer than the others are one of their own. times: of all segments.
std::vector<SegmentKind> KindsByTime(const SegmentKind& kind, const std::vector<UsualTime>& times);
// How many segments of a kind are so of another one than most, the first aside, which may have more to do. 0 where that
// may be by chance, or kinds vary as much as they differ, as with lengths.
size_t CountOthers(const SegmentKind& kind, const std::vector<UsualTime>& times);

}  // namespace lockstep::trace
