// Where in a step of a job each of its ranks here has its items. A stream that skips item by item is walked once a step
// for all of them: else each would walk the items of all others, and what a step costs would grow with the square of
// their number. Guarded by the dispatcher's lock. Cost: a step of a world walks all of its items, at what Stream says;
// 100 bytes for each rank here and each of the newest 64 steps.
//
//   const std::vector<uint64_t> items = dealt.Take(stream, cut, 3, [&] { return numbers_of_all_ranks_here; });
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "lockstep/feed/steps.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::feed {

class DealtSteps {
 public:
  // The items of `rank` in the step that begins at the stream's place; leaves it behind the step. `here`: for whom else
  // the step is to be dealt, if it has to be walked.
  std::vector<uint64_t> Take(sampling::Stream& stream, const EpochCut& cut, uint32_t rank,
                             const std::function<std::vector<uint32_t>()>& here);
  uint64_t walks() const { return walks_; }  // of whole steps, until now

 private:
  struct Step {
    sampling::StreamPlace begin, end;
    std::map<uint32_t, sampling::StreamPlace> ranks;
  };
  const Step& Find(sampling::Stream& stream, const EpochCut& cut, uint32_t rank,
                   const std::function<std::vector<uint32_t>()>& here);

  std::deque<Step> steps_;
  uint64_t walks_ = 0;
};

}  // namespace lockstep::feed
