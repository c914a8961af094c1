// Where the epochs of a job begin: in which lap of the common order, and at which place of it. Decided once for all of
// its ranks, when the first of them comes to the last step of the epoch before, for the state after that step says
// where the next begins. A job of a group (sampling/group.h) begins where that says; one that is alone in the next lap,
// so that nothing but its own spec decides its stream. Guarded by the dispatcher's lock.
#pragma once

#include <map>
#include <memory>
#include <set>

#include "lockstep/base/units.h"
#include "lockstep/feed/begun_epochs.h"
#include "lockstep/sampling/group.h"
#include "lockstep/sampling/stream.h"

namespace lockstep::feed {

class Epochs {
 public:
  // `group`: null for a job that is alone. Shared: it lives as long as a job of it. `key`: of the job. `begun`:
  // outlives the job; null: what was begun before a crash is not known.
  Epochs(uint64_t key, uint32_t world, std::shared_ptr<sampling::Group> group, BegunEpochs* begun = nullptr)
      : key_(key), world_(world), group_(std::move(group)), begun_(begun) {}

  // `stream` is one of a rank of the job, and stays as it is.
  // Epoch 0 of a job that is new. `alone`: its lap where it is in no group.
  sampling::StreamPlace First(const sampling::Stream& stream, const sampling::Lap& alone, Nanos now);
  // A rank goes on at the stream's place. `untouched`: nobody has taken a batch of this job here, so that what it began
  // when its first rank joined, to be told a state then, may be forgotten. False: other ranks of the job have that
  // epoch in another lap.
  bool GoOn(const sampling::Stream& stream, uint32_t rank, bool untouched, Nanos now);
  // Of the epoch after that of `place`. Null: it is not for this rank to say. Of a job that goes on, ranks that have
  // not done so yet may know it; and who began before the others went on elsewhere is still to be told its own state.
  const sampling::StreamPlace* After(const sampling::StreamPlace& place, const sampling::Stream& stream, Nanos now);

  const std::shared_ptr<sampling::Group>& group() const { return group_; }
  void Leave();

 private:
  const sampling::StreamPlace& Put(const sampling::Stream& stream, const sampling::Lap& lap, uint64_t epoch);
  // Does the job have that epoch in that lap?
  bool IsOnTheWay(const sampling::StreamPlace& place) const;
  void PutBegun(const sampling::Stream& stream, const sampling::Lap& lap, uint64_t epoch, Nanos now);

  uint64_t key_;
  uint32_t world_;
  std::shared_ptr<sampling::Group> group_;
  BegunEpochs* begun_;
  std::map<uint64_t, sampling::StreamPlace> begins_;  // by epoch, as far as they are known
  bool goes_on_ = false;
  std::set<uint32_t> told_;  // of a job that goes on: ranks that have said where
};

}  // namespace lockstep::feed
