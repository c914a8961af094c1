// Which items of a step of a job each of its ranks here has. A stream that skips item by item is walked once a step for
// all of them: else each would walk the items of all others, and what a step costs would grow with the square of
// their number. A walk can be made in slices, and without the dispatcher's lock, which guards all else: it has a stream
// of its own. Cost: a step of a world walks all of its items, at what Stream says; of each of the newest 64 steps, 8
// bytes for each item that a rank here has not asked for yet.
//
//   if (!dealt.Has(begin, 3)) {
//     StepWalk& walk = dealt.Begin(stream, begin, cut, numbers_of_ranks_here);
//     while (!walk.GoOn(StepWalk::kSlice)) {}
//     dealt.Keep();
//   }
//   const std::vector<uint64_t> items = dealt.Take(stream, cut, 3);
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/feed/steps.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::feed {

struct DealtStep {
  sampling::StreamPlace begin, end;
  std::map<uint32_t, std::vector<uint64_t>> ranks;  // their items
};

// Of one step.
class StepWalk {
 public:
  static constexpr uint64_t kSlice = uint64_t{1} << 16;  // places: 4 ms
  explicit StepWalk(const sampling::Stream& stream) : stream_(stream) {}
  void Begin(const sampling::StreamPlace& begin, const EpochCut& cut, std::span<const uint32_t> ranks);
  // Looks at so many places; true: the step is dealt.
  bool GoOn(uint64_t places);
  DealtStep Take() { return std::move(step_); }

 private:
  sampling::Stream stream_;
  EpochCut cut_;
  DealtStep step_;
  std::map<uint32_t, std::vector<uint64_t>>::iterator rank_;  // whose items are next, or come after the next
};

class DealtSteps {
 public:
  // Is the step that begins there dealt for this rank?
  bool Has(const sampling::StreamPlace& begin, uint32_t rank) const;
  // The walk of that step, for `ranks`; `stream` is any of the job's.
  StepWalk& Begin(const sampling::Stream& stream, const sampling::StreamPlace& begin, const EpochCut& cut,
                  std::span<const uint32_t> ranks);
  StepWalk& walk() { return *walk_; }
  void Keep();  // what the walk has dealt
  // The items of `rank` in the step that begins at the stream's place; leaves it behind the step. Requires that the
  // step is dealt for it, or that the stream skips at once.
  std::vector<uint64_t> Take(sampling::Stream& stream, const EpochCut& cut, uint32_t rank);
  uint64_t walks() const { return walks_; }  // of whole steps, until now

 private:
  std::deque<DealtStep> steps_;
  std::optional<StepWalk> walk_;
  uint64_t walks_ = 0;
};

}  // namespace lockstep::feed
