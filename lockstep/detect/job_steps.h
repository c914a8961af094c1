// When the steps of a job ended, as far as its collectives tell: a clock for all of its ranks. What happens to a rank
// within a step, say that its sequences are long, happens in each of its collectives alike, however many these are: so
// it is steps that are counted, not collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::detect {

// A collective, as one of those that took part, or all, saw it end.
struct Met {
  uint32_t communicator;
  int64_t number = 0;  // among the collectives of its communicator, whatever is lost of these
  uint32_t function = 0;
  int64_t end_ns;
  uint64_t bytes = 0;  // that one of them sent
  int64_t stands_for = 1;
};

struct JobSteps {
  std::vector<int64_t> ends_ns;  // ascending; the first is where the first step begins. Empty: there are no collectives
  int64_t usual_ns = 0;          // what a step takes, at the least

  // Whether somebody is slow is told of six; of four at the least, for one alone may lie in three quarters of the time
  // in which there are fewer.
  static constexpr size_t kWanted = 6, kFewest = 4;

  size_t size() const { return ends_ns.empty() ? 0 : ends_ns.size() - 1; }
  // When the newest so many began, or all.
  int64_t SinceNs(size_t steps) const { return ends_ns.empty() ? 0 : ends_ns[size() - std::min(size(), steps)]; }
};

// A step is what lies between two collectives, or bursts of them, of the communicator that rests for longest between
// them: gradients are reduced once in a step, by whomever tokens or parameters are exchanged in between. One that
// carries next to nothing, as one in which a checkpoint is agreed on, tells of no steps. Where all is exchanged in one,
// as where parameters are sharded (FSDP, ZeRO-3), it is what comes again after so many of its collectives, the same
// number each time: of those by function and size the most frequent. Where no kind does, and they come without a rest,
// a step looks as short as what lies between two of them.
//
// Cost: that of sorting `all`.
JobSteps FindJobSteps(std::vector<Met> all);

}  // namespace lockstep::detect
