// What a process did by itself before a collective, where it keeps a trail of more than one library (gloo and NCCL):
// each collector knows of its own library alone, and takes what the process waited in another one for its own doing.
#pragma once

#include <span>

#include "lockstep/trace/trail_file.h"

namespace lockstep::trace {

// Whether what it launches begins when a device has come to it.
bool LaunchesAhead(const TrailSnapshot& trail);

// Of ops that ended, `alone` begins anew where an op of another library of the same process ended; it is unknown where
// nobody can say when one did. Said twice it changes nothing more. Of trails that were thinned (trail_file.h, Thin)
// only what they still say is looked at: before that is the time to ask.
void LimitAlone(std::span<TrailSnapshot> trails);

}  // namespace lockstep::trace
