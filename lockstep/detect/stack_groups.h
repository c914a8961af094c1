// Which rank holds a job up, by the stacks of all its processes at one moment (stack aggregation, as in ByteRobust,
// SOSP 2025, section 5). docs/models/detect.md, "Stacks of a whole job", has the rules as a table.
//
// The first that tells decides: who waits for whom by the ranks' own logs; who is stopped while others wait; by the
// calls that they are in and the layout; who is outside of communication while others wait; who is elsewhere than most,
// with the smallest parallel group that holds them all; helper processes that are elsewhere than most. Without a
// majority all are equally good.
//
// Invariants: pure; a function of the set of stacks, whatever their order; `suspects` and `ambiguous_with` are
// disjoint. One moment proves nothing: a finding is certain only where logs say that the job hangs, and the stacks
// agree. Cost: 320,000 processes with 5.0 million frames in 0.3 s on one core (bench/stack_groups).
//
//   LS_ASSIGN_OR_RETURN(const StackVerdict verdict, AggregateStacks(stacks, {.layout = layout}));
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/detect/shared_group.h"
#include "lockstep/detect/stack_clusters.h"
#include "lockstep/detect/stack_waits.h"
#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// What is known beside the stacks.
struct StackContext {
  std::optional<cluster::Layout> layout = {};
  WaitGraph waits = {};
  Lines lines = Lines::kDrop;
};

enum class StackBasis {
  kNothing,      // nobody waits, or no stack could be read
  kTogether,     // all wait in one place
  kWaitFor,      // by logs
  kStopped,      // by a signal, while others wait
  kLayout,       // by calls and layout
  kOutside,      // of communication, while others wait
  kSharedGroup,  // elsewhere than most, and who shares a group with them
  kOutliers,     // elsewhere than most
  kHelpers,      // their helpers are elsewhere than most
  kTie,          // no place holds more than half
};
const char* StackBasisName(StackBasis basis);

// What the rule of the paper costs: all machines of the smallest group with all outliers go.
struct GroupRule {
  SharedGroup group;
  size_t machines = 0;      // of it; ranks, where nodes are not known
  size_t over_evicted = 0;  // of these, without a suspect; where the rule itself names, all but one
};

struct StackVerdict {
  std::optional<incident::Finding> finding;  // none: nobody waits
  StackBasis basis = StackBasis::kNothing;
  // The share of all ranks that the verdict accounts for: suspects, and those that wait for them as far as it is known,
  // or those in the place that holds most.
  double confidence = 0;
  StackClusters stacks;
  std::vector<int> outliers;  // elsewhere than more than half of the trainers
  std::vector<int> no_stack;  // ranks of which none was read, as far as they are known
  std::optional<GroupRule> group_rule;
  std::vector<std::string> machines;  // to be evicted; empty: nodes are not known, or nobody is named
};

// kInvalidArgument: an invalid layout, a rank that it has not, or two stacks of a trainer.
absl::StatusOr<StackVerdict> AggregateStacks(std::span<const trace::ProcessStack> stacks,
                                             const StackContext& context = {});

}  // namespace lockstep::detect
