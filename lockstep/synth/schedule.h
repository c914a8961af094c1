// In which order a pipeline stage computes: 1F1B, interleaved over model chunks with vpp > 1 (Megatron-LM's order).
#pragma once

#include <vector>

namespace lockstep::synth {

struct Compute {
  bool forward;
  int chunk, microbatch;
};

// Requires microbatches to be a multiple of pp when vpp > 1.
std::vector<Compute> Schedule(int stage, int pp, int vpp, int microbatches);

}  // namespace lockstep::synth
