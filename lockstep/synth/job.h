// The generator of jobs: a pipelined, data-parallel training job with known faults, as the rows that a tracer would
// have written. What is planted is known, so whoever explains or detects can be held against it.
//
// Ops follow the schedule of their stage (1F1B; interleaved with vpp > 1, as Megatron-LM orders it) and the rules of
// trace/pipeline.h; when each starts and ends is a replay of the sampled durations. Deterministic in (shape, faults,
// seed).
//
//   JobShape shape{.dp = 4, .pp = 4};
//   Fault slow{.kind = FaultKind::kWorker, .dp = 2, .stage = 1, .factor = 1.4};
//   LS_ASSIGN_OR_RETURN(trace::StragglerRows rows, Generate(shape, {slow}, 7));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/synth/fault.h"
#include "lockstep/trace/straggler.h"

namespace lockstep::synth {

struct JobShape {
  int dp = 4, pp = 4, tp = 1, vpp = 1;
  int microbatches = 16;  // per step and data-parallel rank; a multiple of pp when vpp > 1
  int steps = 20;
  Seconds forward{0.2}, backward{0.36};  // of one microbatch on one stage (all its chunks)
  Seconds transfer{0.002};               // between stages
  Seconds gather{0.02}, reduce{0.1};     // of parameters and gradients, per chunk
  Seconds embedding{0.02}, clip{0.01}, optimizer{0.02};
  bool overlapped = false;  // gradients are reduced beside the backward pass
  double jitter = 0.005;    // of every duration: its logarithm has this standard deviation
  Seconds launch{0.00002};  // what passes between ops

  // "microbatches must be a multiple of pp when vpp > 1, found 6".
  absl::Status Validate() const;
};

trace::StragglerMeta MetaOf(const JobShape& shape);
// kInvalidArgument: a shape that can't be, or a fault on a rank, stage or step that the job does not have.
absl::StatusOr<trace::StragglerRows> Generate(const JobShape& shape, const std::vector<Fault>& faults, uint64_t seed);

}  // namespace lockstep::synth
