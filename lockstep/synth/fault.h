// What can be planted in a generated job.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::synth {

enum class FaultKind : uint8_t {
  kWorker,           // one worker computes `factor` times as long
  kTransientWorker,  // the same in steps first_step .. last_step
  kStage,            // a stage does, on all ranks
  kSequenceLength,   // microbatches differ: their cost's logarithm has the standard deviation `factor`
  kGc,               // in `share` of worker-steps one forward takes `seconds` more
  kLink,             // transfers from `stage` to the next, of one rank, take `seconds` more
  kRing,             // collectives of one stage's data-parallel ranks take `factor` times as long
  kFabric,           // all data-parallel collectives do, in steps first_step .. last_step
  kDataLoading,      // the first forward of a step starts `seconds` late on the first stage, of rank dp
};
const char* FaultKindName(FaultKind kind);  // "transient_worker"

struct Fault {
  FaultKind kind = FaultKind::kWorker;
  int dp = 0, stage = 0;
  double factor = 1.5;
  Seconds seconds{0.25};
  double share = 0.2;
  int first_step = 0, last_step = std::numeric_limits<int>::max();  // counted from 0
};

// "worker:dp=2,stage=1,factor=1.4", "fabric:factor=20,steps=8-12"; what is not said has the default above. Errors name
// what was expected.
absl::StatusOr<Fault> ParseFault(const std::string& text);
Json FaultJson(const Fault& fault);

}  // namespace lockstep::synth
