#include "lockstep/feed/dealt_steps.h"

#include <algorithm>

namespace lockstep::feed {
namespace {

constexpr size_t kMostSteps =
    64;  // ranks are as far apart as their rings are long; who is further has its steps walked

std::vector<uint64_t> Next(sampling::Stream& stream, uint64_t count) {
  std::vector<uint64_t> items;
  while (items.size() < count) items.push_back(stream.Next());
  return items;
}

}  // namespace

std::vector<uint64_t> DealtSteps::Take(sampling::Stream& stream, const EpochCut& cut, uint32_t rank,
                                       const std::function<std::vector<uint32_t>()>& here) {
  const uint64_t before = stream.place().taken;
  const StepShare share = cut.Share(before, rank);
  std::vector<uint64_t> items;
  if (stream.SkipsAtOnce()) {
    stream.Skip(share.position - before);
    items = Next(stream, share.items);
    stream.Skip(share.next - share.position - share.items);
  } else {
    const Step& step = Find(stream, cut, rank, here);
    stream.GoTo(step.ranks.at(rank));
    items = Next(stream, share.items);
    stream.GoTo(step.end);
  }
  return items;
}

// Ranks that have joined since a step was dealt are not in it: then it is dealt anew, for all who are here now.
const DealtSteps::Step& DealtSteps::Find(sampling::Stream& stream, const EpochCut& cut, uint32_t rank,
                                         const std::function<std::vector<uint32_t>()>& here) {
  const auto known = std::find_if(steps_.begin(), steps_.end(), [&](const Step& step) {
    return step.begin == stream.place() && step.ranks.contains(rank);
  });
  if (known != steps_.end()) return *known;
  std::erase_if(steps_, [&](const Step& step) { return step.begin == stream.place(); });
  if (steps_.size() >= kMostSteps) steps_.pop_front();
  ++walks_;
  Step& step = steps_.emplace_back(Step{stream.place(), {}, {}});
  step.ranks[rank];
  for (const uint32_t other : here()) step.ranks[other];
  for (auto& [number, place] : step.ranks) {
    stream.Skip(cut.Share(step.begin.taken, number).position - stream.place().taken);
    place = stream.place();
  }
  stream.Skip(cut.Share(step.begin.taken, rank).next - stream.place().taken);
  step.end = stream.place();
  return step;
}

}  // namespace lockstep::feed
