// A model and a machine for tests.
#pragma once

#include "lockstep/plan/workload.h"

namespace lockstep::plan {

inline Workload TestWorkload() {
  Workload work;
  work.layers = 16;
  work.hidden = 4096;
  work.ffn = 16'384;
  work.heads = work.kv_heads = 32;
  work.head_dim = 128;
  work.vocabulary = 50'000;
  work.sequence = 4096;
  work.global_batch = 64;
  work.accelerators = 16;
  work.machine = {.name = "m",
                  .rates = "m",
                  .bf16 = 300e12,
                  .fp8 = 0,
                  .fp4 = 0,
                  .memory = 40e9,
                  .bandwidth = 2e12,
                  .scale_up = 300e9,
                  .nic = 25e9,
                  .domain = 8};
  return work;
}

}  // namespace lockstep::plan
