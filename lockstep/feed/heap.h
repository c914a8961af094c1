// The heap of the service's process, kept near to what is used of it: items of all sizes come and go, and what is freed
// is to be the system's again. Any thread.
#pragma once

#include <cstdint>

namespace lockstep::feed {

// What the heap may hold unused, beside a fiftieth of what is used.
inline constexpr uint64_t kUnusedHeap = 4 << 20;

// Once, before anything else runs: buffers of 4 MB or more are the system's by themselves, and the end of the heap if
// it is unused. Not each photo of a usual size: to get its memory from the system costs a tenth of its decode.
void BoundHeap();
// Gives back pages in the middle of the heap, if more is unused than may be. A few microseconds where not.
void TrimHeap();

}  // namespace lockstep::feed
