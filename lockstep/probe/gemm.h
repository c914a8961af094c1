// Whether each core multiplies matrices right, to the bit, and how fast: the kernels of gemm_kernels.h in turn on every
// core at once, each result compared with its known checksum. Memory: 512 KiB and 256 KiB per core.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "lockstep/probe/budget.h"
#include "lockstep/probe/measurement.h"

namespace lockstep::probe {

// For tests: what a fault does to a result before it is looked at.
using TamperGemm = std::function<void(int core, std::span<float> product)>;

// gemm.bits (errors: results that were wrong), gemm.all (GFLOP/s of all cores), gemm.slowest (of one core).
std::vector<Measurement> MeasureGemm(const Budget& budget, const std::vector<int>& cores,
                                     const TamperGemm& tamper = {});

}  // namespace lockstep::probe
