// A data-parallel job with known faults, as the files that PyTorch's profiler would have written, one per rank:
// kernels, their launches, NCCL kernels with what they tell of themselves, steps. Deterministic in (shape, faults,
// seed).
//
// A step: forward kernels, backward kernels beside which buckets of gradients are all-reduced on a stream of their own,
// then the optimizer, which waits for the last bucket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/synth/fault.h"
#include "lockstep/synth/kineto_file.h"

namespace lockstep::synth {

struct DdpShape {
  int ranks = 8, steps = 10;
  int kernels = 60;  // of a step: a third forward, the rest backward
  int buckets = 4;
  Seconds kernel{0.001}, transfer{0.004}, optimizer{0.005};
  double jitter = 0.005;      // of every duration: its logarithm has this standard deviation
  Seconds clock_offset{0.0};  // clocks of ranks differ by this, normally distributed
  KinetoEra era = KinetoEra::kBase;

  absl::Status Validate() const;
};

// Writes rank-N.json.gz of each rank into the directory. Faults: worker, transient_worker, sequence_length (of a step
// on a rank), gc, fabric, data_loading; others are refused. A fault's dp is the rank.
absl::Status WriteDdpTraces(const std::string& directory, const DdpShape& shape, const std::vector<Fault>& faults,
                            uint64_t seed);

}  // namespace lockstep::synth
