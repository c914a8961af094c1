// For tests: a machine and rates of round figures; what is left of a formula can be computed by hand.
#pragma once

#include "lockstep/plan/rates.h"
#include "lockstep/plan/workload.h"

namespace lockstep::plan {

inline Machine Plain() {
  return {.name = "plain",
          .rates = "plain",
          .bf16 = 100e12,
          .fp8 = 200e12,
          .fp4 = 0,
          .memory = 80e9,
          .bandwidth = 1e12,
          .scale_up = 100e9,
          .nic = 10e9,
          .domain = 8};
}
inline Rates Perfect() {
  Rates rates;
  for (const RateField& field : RateFields()) rates.*field.member = field.least;
  rates.gemm = rates.flash = rates.unfused = .5;
  rates.scale_up = rates.network = .5;
  rates.expert_gemm = rates.attention = rates.stream = rates.sharded_rate = 1;
  return rates;
}
inline Workload Small() {
  Workload work;
  work.layers = 8;
  work.hidden = 1024;
  work.ffn = 4096;
  work.heads = work.kv_heads = 16;
  work.head_dim = 64;
  work.vocabulary = 32'000;
  work.sequence = 2048;
  work.global_batch = 64;
  work.accelerators = work.dp = 8;
  work.machine = Plain();
  return work;
}

// Two of eight experts for each of 2,048 tokens, an expert on each of eight ranks.
inline Workload Mixture() {
  Workload work = Small();
  work.experts = work.ep = 8, work.top_k = 2, work.expert_ffn = 4096;
  return work;
}

}  // namespace lockstep::plan
