#include "lockstep/feed/epochs.h"

#include <algorithm>

namespace lockstep::feed {

using sampling::Lap;
using sampling::Stream;
using sampling::StreamPlace;

namespace {

StreamPlace BeginOf(Stream stream, const Lap& lap, uint64_t epoch) {
  stream.Begin(lap, epoch);
  return stream.place();
}

}  // namespace

const StreamPlace& Epochs::Put(const Stream& stream, const Lap& lap, uint64_t epoch) {
  if (group_ != nullptr && begun_ != nullptr) begun_->Note(key_, epoch, lap);
  return begins_[epoch] = BeginOf(stream, lap, epoch);
}

// Of an epoch that began in a life before of the service. The group is to know the newest, whichever rank tells first:
// else the next epoch would have an order that there was.
void Epochs::PutBegun(const Stream& stream, const Lap& lap, uint64_t epoch, Nanos now) {
  Put(stream, lap, epoch);
  uint64_t newest = 0;
  for (const auto& [number, place] : begins_) newest = std::max(newest, place.lap.number);
  if (group_ != nullptr) group_->GoOn(key_, newest, now.value);
}

bool Epochs::IsOnTheWay(const StreamPlace& place) const {
  const auto known = begins_.find(place.epoch);
  return known != begins_.end() && known->second.lap == place.lap;
}

// A rank that is new where others go on is about to be told its state: where it begins says nothing of the job.
StreamPlace Epochs::First(const Stream& stream, const Lap& alone, Nanos now) {
  const auto known = begins_.find(0);
  if (known != begins_.end()) return known->second;
  if (!begins_.empty()) return BeginOf(stream, alone, 0);
  return Put(stream, group_ != nullptr ? group_->Begin(key_, now.value) : alone, 0);
}

bool Epochs::GoOn(const Stream& stream, uint32_t rank, bool untouched, Nanos now) {
  const StreamPlace& place = stream.place();
  if (untouched && !goes_on_ && !IsOnTheWay(place)) {
    goes_on_ = true;
    begins_.clear();
  }
  if (goes_on_) told_.insert(rank);
  if (!begins_.contains(place.epoch)) PutBegun(stream, place.lap, place.epoch, now);
  return IsOnTheWay(place);
}

const StreamPlace* Epochs::After(const StreamPlace& place, const Stream& stream, Nanos now) {
  const auto known = begins_.find(place.epoch + 1);
  if (known != begins_.end()) return &known->second;
  if (!IsOnTheWay(place)) return nullptr;
  if (group_ == nullptr) {
    const Lap next{.number = place.lap.number + 1, .offset = place.lap.window == 0 ? place.lap.offset : 0};
    return &Put(stream, next, place.epoch + 1);
  }
  if (goes_on_ && told_.size() < world_) {
    const auto next = begun_ != nullptr ? begun_->After(key_, place.epoch, place.lap) : std::nullopt;
    if (!next) return nullptr;
    PutBegun(stream, *next, place.epoch + 1, now);
    return &begins_.at(place.epoch + 1);
  }
  return &Put(stream, group_->Begin(key_, now.value), place.epoch + 1);
}

void Epochs::Leave() {
  if (group_ != nullptr) group_->Leave(key_);
}

}  // namespace lockstep::feed
