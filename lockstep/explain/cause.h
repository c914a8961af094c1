// What holds a job back, by name, with evidence and what it would gain without.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::explain {

enum class CauseKind : uint8_t {
  kWorker,           // computes longer than the other ranks of its stage
  kTransientWorker,  // the same, in a run of steps
  kStage,            // has more to do than the other stages, on all ranks
  kSequenceLength,   // microbatches of one step differ in length
  kGc,               // pauses of the host: garbage collection, or the like
  kOptimizer,        // an optimizer that takes longer than those of the other ranks of its stage
  kLink,             // transfers between two stages of one rank
  kRing,             // collectives of one stage's data-parallel ranks
  kFabric,           // all communication, in some steps
  kDataLoading,      // the first compute of a step is started late, or the rank says that it waits for data
};
const char* CauseName(CauseKind kind);  // "transient_worker"

struct CauseSuspect {
  std::optional<int> dp, stage;  // none: all of them
  std::optional<int32_t> rank;   // the global rank that stands for the worker
  std::optional<int64_t> first_step, last_step;
  bool operator==(const CauseSuspect&) const = default;
};

struct Cause {
  CauseKind kind = CauseKind::kWorker;
  std::vector<CauseSuspect> suspects;  // none: the job as a whole
  double gain_s = 0;                   // per step, were it mended, with the causes before it mended already
  double share = 0;                    // of the loss; shares and what is unexplained add up to 1
  std::vector<std::string> evidence;
};

}  // namespace lockstep::explain
