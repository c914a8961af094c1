// A step as a profiler saw it, in the terms of a prediction (step_parts.h): every moment of every rank counts to one of
// them, so they add up to the step. What computes comes before communication, which is then hidden; what transfers
// before what waits; of several at once, the one that began first counts.
//
//   LS_ASSIGN_OR_RETURN(std::vector<trace::KinetoRank> ranks, trace::ReadKinetoFiles(paths, std::nullopt));
//   LS_ASSIGN_OR_RETURN(const MeasuredParts measured, MeasureParts(std::move(ranks), workload));
//
// A communication transfers from when its last member began; before, it waits. Where the files of all its members are
// given this is known, else its transfer is taken to be as long as the shortest of its kind on the rank.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/plan/step_parts.h"
#include "lockstep/trace/counter.h"
#include "lockstep/trace/kineto.h"

namespace lockstep::plan {

struct KernelSeconds {
  std::string name;
  StepPart part;
  double seconds = 0;  // of a step, in the mean over ranks, alone or first
};
struct RankSeconds {
  int rank;
  double computes, waits;  // s of a step; waits: for other ranks or stages
};

struct MeasuredParts {
  StepParts parts;                     // in the mean over steps and the ranks given
  std::vector<KernelSeconds> kernels;  // the longest first
  std::vector<RankSeconds> ranks;      // as given
  std::vector<int64_t> steps;
  bool ends_are_known = true;  // else there is no step behind any of the steps: none has the time up to the next
  double matched = 1;          // share of communications of which all members are given
  std::vector<std::vector<int>> odd_groups;  // ranks that communicate in groups which this layout does not have
  std::vector<trace::Counter> counters;
};

// kInvalidArgument: no work on a device, no steps, ranks of another world than the layout's, or whose groups are
// of another layout; and what FindSteps refuses.
absl::StatusOr<MeasuredParts> MeasureParts(std::vector<trace::KinetoRank> ranks, const Workload& layout);

}  // namespace lockstep::plan
