// The decision table of docs/models/detect.md: from what the ranks do to findings. Pure.
// Invariant: a certain finding never names a rank whose stack says that it waits for the others, unless the ranks wait
// in different places.
#pragma once

#include "lockstep/detect/conduct.h"
#include "lockstep/detect/hang.h"

namespace lockstep::detect {

Verdict ApplyHangRules(const Situation& job);

}  // namespace lockstep::detect
