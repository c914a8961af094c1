#include "lockstep/feed/dealt_steps.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/check.h"

namespace lockstep::feed {
namespace {

constexpr size_t kMostSteps =
    64;  // ranks are as far apart as their rings are long; who is further has its steps walked

}  // namespace

void StepWalk::Begin(const sampling::StreamPlace& begin, const EpochCut& cut, std::span<const uint32_t> ranks) {
  stream_.GoTo(begin);
  cut_ = cut;
  step_ = {.begin = begin, .end = {}, .ranks = {}};
  for (const uint32_t rank : ranks) step_.ranks[rank];
  rank_ = step_.ranks.begin();
}

// Ranks have their items one after the other, in the order of their numbers.
bool StepWalk::GoOn(uint64_t places) {
  for (const uint64_t end = cut_.Share(step_.begin.taken, 0).next; stream_.place().taken < end;) {
    if (!stream_.Find(places)) return false;
    const uint64_t position = stream_.place().taken, id = stream_.Next();
    for (; rank_ != step_.ranks.end(); ++rank_) {
      const StepShare share = cut_.Share(step_.begin.taken, rank_->first);
      if (position < share.position) break;
      if (position >= share.position + share.items) continue;
      rank_->second.push_back(id);
      break;
    }
  }
  step_.end = stream_.place();
  return true;
}

bool DealtSteps::Has(const sampling::StreamPlace& begin, uint32_t rank) const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const DealtStep& step) { return step.begin == begin && step.ranks.contains(rank); });
}

StepWalk& DealtSteps::Begin(const sampling::Stream& stream, const sampling::StreamPlace& begin, const EpochCut& cut,
                            std::span<const uint32_t> ranks) {
  if (!walk_) walk_.emplace(stream);
  walk_->Begin(begin, cut, ranks);
  ++walks_;
  return *walk_;
}

// Ranks that have joined since a step was dealt are not in it: then it was dealt anew, for all who are here now.
void DealtSteps::Keep() {
  DealtStep dealt = walk_->Take();
  std::erase_if(steps_, [&](const DealtStep& step) { return step.begin == dealt.begin; });
  if (steps_.size() >= kMostSteps) steps_.pop_front();
  steps_.push_back(std::move(dealt));
}

std::vector<uint64_t> DealtSteps::Take(sampling::Stream& stream, const EpochCut& cut, uint32_t rank) {
  std::vector<uint64_t> items;
  if (stream.SkipsAtOnce()) {
    const uint64_t before = stream.place().taken;
    const StepShare share = cut.Share(before, rank);
    stream.Skip(share.position - before);
    while (items.size() < share.items) items.push_back(stream.Next());
    stream.Skip(share.next - share.position - share.items);
    return items;
  }
  const auto step = std::find_if(steps_.begin(), steps_.end(), [&](const DealtStep& one) {
    return one.begin == stream.place() && one.ranks.contains(rank);
  });
  LS_CHECK(step != steps_.end(), "rank {} at item {} of epoch {}", rank, stream.place().taken, stream.place().epoch);
  items = std::move(step->ranks.at(rank));
  stream.GoTo(step->end);
  step->ranks.erase(rank);
  if (step->ranks.empty()) steps_.erase(step);
  return items;
}

}  // namespace lockstep::feed
