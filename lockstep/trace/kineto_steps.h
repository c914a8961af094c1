// The ops of each rank, step by step, and what form the steps have: which communications in which order, and where
// compute is cut by them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/trace/kineto.h"
#include "lockstep/trace/kineto_pipelines.h"
#include "lockstep/trace/straggler_sink.h"

namespace lockstep::trace {

// A rank in a step: indices into KinetoRank::ops.
struct RankStep {
  std::vector<uint32_t> computes;     // by begin
  std::vector<uint32_t> collectives;  // in the order in which they were launched
  std::vector<size_t> cuts;           // indices into computes: from 0 to their number, one more than segments
  uint32_t last_before = kNoIndex;    // of what was launched in steps before, what ends last; kNoIndex: nothing was
};

// How the steps of some ranks look. Cuts are named by their place in RankStep::cuts.
struct RoleForm {
  size_t cuts = 0;
  std::vector<std::string> parts;   // of the step, by segment of compute; empty: not told
  std::vector<std::string> names;   // of the communications
  std::vector<uint32_t> streams;    // of the communications; kNoIndex: it waits for none before it
  std::vector<size_t> input_cut;    // compute before this cut makes the input of communication i
  std::vector<size_t> awaited_cut;  // compute from this cut on waited for communication i; kNever: none did
  std::vector<size_t> behind;       // the communication, on another stream, that i waited for; kNever: none
  static constexpr size_t kNever = ~size_t{0};
};

struct KinetoSteps {
  std::vector<int64_t> numbers;            // of the steps that all ranks have in their usual form, ascending
  std::vector<std::vector<RankStep>> ops;  // [step][rank]
  std::vector<size_t> role_of;             // [rank]
  std::vector<RoleForm> roles;
  std::optional<Pipelines> pipelines;  // then no role is of two stages: a transfer of each rank tells its own
  std::vector<int> lacking;            // ranks that do not have all steps that some rank has
  std::vector<Counter> counters;
};

// By rank. kInvalidArgument: none, two of the same rank, or some of another job.
absl::Status OrderAsOneJob(std::vector<KinetoRank>& ranks);

// kInvalidArgument: no step that all ranks have, or none in which their communications are as in most others.
absl::StatusOr<KinetoSteps> FindSteps(const std::vector<KinetoRank>& ranks, const std::vector<StepRange>& wanted);

}  // namespace lockstep::trace
