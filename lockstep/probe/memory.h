// How fast memory can be copied, by each core alone and by all together, and whether what was copied is right. The
// copies go past the caches (client/copy.h), between two buffers that are each twice as large as the largest cache, at
// least 16 and at most 256 MiB: memory for both is needed. Copied bytes count once. The buffers lie where the first
// core's thread put them; nodes of memory are not told apart.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// For tests: what a fault does to the copy before it is looked at.
using TamperWords = std::function<void(std::span<uint64_t>)>;

// memory.bits (errors: words that are not what was written), memory.all (GB/s), memory.slowest (GB/s of one core while
// the others rest).
std::vector<Measurement> MeasureMemory(const Budget& budget, const std::vector<int>& cores,
                                       const TamperWords& tamper = {});

}  // namespace lockstep::probe
