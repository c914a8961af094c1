// How many files this process may have open: the usual soft limit of 1,024 is soon over where each rank takes some, and
// the hard one is mostly far above it.
#pragma once

#include <cstdint>

namespace lockstep {

// Raises the soft limit to `wanted`, or as far as the hard one lets it, and never lowers it. What it is then.
uint64_t AllowOpenFiles(uint64_t wanted);
// Back to what it was, for a child that is to run somebody else's program: select() can't take descriptors above 1,023.
// Async-signal-safe.
void RestoreOpenFiles();

}  // namespace lockstep
