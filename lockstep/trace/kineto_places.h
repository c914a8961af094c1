// Where the computes of a step make the input of its communications, and where they waited for them. Places are
// indices into RankStep::computes: what comes before one has made the input, what comes from it on has waited.
#pragma once

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/trace/kineto.h"
#include "lockstep/trace/kineto_steps.h"

namespace lockstep::trace {

// Whether a communication that was seen to be awaited in some of the steps is held to be.
inline bool IsAwaited(size_t seen, size_t steps) {
  constexpr double kOften = 0.3;
  return seen > 0 && static_cast<double>(seen) >= kOften * static_cast<double>(steps);
}

struct StepOfRank {
  const KinetoRank* rank;
  RankStep* step;
};

// Of each communication, in the order of RankStep::collectives. RoleForm::kNever: nothing waited for it; it waited for
// none.
struct Places {
  std::vector<size_t> inputs, awaited;
  std::vector<size_t> behind;  // the communication that it waited for, other than those before it on its stream
};

// On a device, by the times of this step alone.
Places DevicePlaces(const KinetoRank& rank, const RankStep& step);

// On threads of a host that hand their communications to gloo's, in steps of one form. The numbers of ops differ even
// from step to step of one rank: by times in whole microseconds, an op within another may look like one behind it. And
// either thread may get its turn late. So a wait is looked for as many ops behind its input as in most steps of its
// rank, at the longest rest nearby.
class HostPlaces {
 public:
  explicit HostPlaces(const std::vector<StepOfRank>& steps);
  Places In(const KinetoRank& rank, const RankStep& step) const;

 private:
  std::map<const KinetoRank*, std::vector<size_t>> distances_;  // [communication] from its input to the wait for it
};

}  // namespace lockstep::trace
