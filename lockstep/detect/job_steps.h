// When the steps of a job ended, as far as its collectives tell: a clock for all of its ranks. What happens to a rank
// within a step, say that its sequences are long, happens in each of its collectives alike, however many these are: so
// it is steps that are counted, not collectives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::detect {

enum class Moves : uint8_t { kOther, kGathers, kScatters };

// Of functions by their names, however these are spelt: "all_gather", "ReduceScatter". What one rank gathers or
// scatters is something else.
std::vector<Moves> MovesOf(const std::vector<std::string>& functions);
// Of an ls_function: the same.
Moves MovesOf(uint8_t function);

// A collective, as one of those that took part, or all, saw it end.
struct Met {
  uint32_t communicator;
  int64_t number = 0;  // among the collectives of its communicator, whatever is lost of these
  uint32_t function = 0;
  Moves moves = Moves::kOther;  // what the function does with parameters or gradients
  int64_t end_ns;
  uint64_t bytes = 0;  // that one of them sent
  int64_t stands_for = 1;
};

struct JobSteps {
  std::vector<int64_t> ends_ns;  // ascending; the first is where the first step begins. Empty: there are no collectives
  int64_t usual_ns = 0;          // what a step takes, at the least
  int64_t wanted_ns = 0;         // where no step is known: in so much time some would be; 0: nobody knows

  // Whether somebody is slow is told of six; of four at the least, for one alone may lie in three quarters of the time
  // in which there are fewer.
  static constexpr size_t kWanted = 6, kFewest = 4;

  size_t size() const { return ends_ns.empty() ? 0 : ends_ns.size() - 1; }
  // When the newest so many began, or all.
  int64_t SinceNs(size_t steps) const { return ends_ns.empty() ? 0 : ends_ns[size() - std::min(size(), steps)]; }
};

// A step is what comes again. Of each communicator that carries something, in this order:
// - the kind (function and size) that comes again soonest after the same number of its collectives each time;
// - bursts of as many collectives each, and the rests between them;
// - whatever rests lie between its collectives.
// The one of these that takes longest ends steps: gradients are reduced once in a step, by whomever tokens are
// exchanged in between. Where parameters are sharded (FSDP, ZeRO-3: gathered more often than gradients are scattered)
// all of this may come again with each layer, or microbatch. Steps are told there by what carries next to nothing and
// comes more rarely, as the norm of the gradients. Where that isn't known, as before a few steps are over, no step is.
//
// Cost: that of sorting `all`.
JobSteps FindJobSteps(std::vector<Met> all);

}  // namespace lockstep::detect
