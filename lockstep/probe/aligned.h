// The aligned model on every core of this machine at once, again and again: all must give the bits that are known.
// Memory: 8 MB per core.
#pragma once

#include <vector>

#include "lockstep/probe/aligned_model.h"
#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

struct AlignedOptions {
  AlignedShape shape{};
  int repeat = 1;  // at least so often, for faults that show only sometimes; more while there is time
  TamperValues tamper{};
};

// aligned.single.SHAPE and aligned.bfloat16.SHAPE (crc32c, what most runs gave; ok: all gave what is expected).
std::vector<Measurement> MeasureAligned(const Budget& budget, const std::vector<int>& cores,
                                        const AlignedOptions& options);

}  // namespace lockstep::probe
