// Where each rank of a job stands in its communication: how far in every communicator, and in which op now.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

// Ranks of the job and members of communicators that told nothing, ascending.
std::vector<int> NoReport(const trace::CommLog& log);

// Of two ops of a rank.
bool RunTogether(const trace::CommOp& a, const trace::CommOp& b);

// A rank in a communicator's collectives.
struct Place {
  static constexpr int64_t kNone = -1;
  int64_t enqueued = kNone;  // the newest that it launched
  int64_t front = kNone;     // the oldest of them that has not ended
  int64_t ended = kNone;     // the newest of those that are told whose end is
  bool counted = false;      // by the rank itself: no lost record can change it
  // The newest that it has ended.
  int64_t completed() const { return front == kNone ? enqueued : front - 1; }
};

class Standing {
 public:
  // `log` must outlive it.
  explicit Standing(const trace::CommLog& log);

  const trace::CommLog& log() const { return log_; }
  bool HasReported(int rank) const { return reported_.contains(rank); }
  // The oldest op that the rank launched and that has not ended; a send only where there is nothing else. Null: none.
  const trace::CommOp* InOf(int rank) const;
  // Whether that is this collective.
  bool IsIn(int rank, const trace::CommOp& op) const;
  // In a communicator in which somebody has an op that has not ended; of others it is not kept.
  Place PlaceOf(uint32_t communicator, int rank) const;
  // Those that are known.
  const std::vector<int>& MembersOf(uint32_t communicator) const { return log_.communicators[communicator].ranks; }
  // With those that are not known.
  size_t SizeOf(uint32_t communicator) const {
    return MembersOf(communicator).size() + log_.communicators[communicator].unknown();
  }
  // Of an op that has not ended: it, and what runs together with it, in the order of launch.
  std::vector<const trace::CommOp*> Together(const trace::CommOp& op) const;
  // Sends of the rank that have not ended, launched before what it is in, and not together with it.
  std::vector<const trace::CommOp*> SendsBefore(int rank) const;
  // The other end of a transfer, if it is launched and has not ended.
  const trace::CommOp* Counterpart(const trace::CommOp& op) const;
  // Of a transfer that has not ended: its peer is in the other end, or in what runs together with that.
  bool IsInOtherEnd(const trace::CommOp& op) const;
  // Of a transfer that has not ended: whether its other end was launched, ended or not. Null: so much was lost that it
  // can't be told.
  std::optional<bool> PeerHasLaunched(const trace::CommOp& op) const;
  // The other end, ended or not, of a transfer that has not ended. Null: it is not launched, or it can't be told which
  // it is.
  const trace::CommOp* OtherEnd(const trace::CommOp& op) const;
  // Ops that have not ended, by rank, in the order of launch.
  const std::map<int, std::vector<const trace::CommOp*>>& open() const { return open_; }

 private:
  void Take(const trace::CommOp& op);
  void Take(const trace::CommCount& count);

  // The transfers of a rank that go the same way between the same two.
  using Lane = std::tuple<uint32_t, int, trace::Direction, int>;  // communicator, rank, direction, peer
  static Lane LaneOf(const trace::CommOp& op) { return {op.communicator, op.rank, op.direction, op.peer}; }
  static Lane OtherLaneOf(const trace::CommOp& op);
  void FillLanes();

  const trace::CommLog& log_;
  const std::set<int> reported_;
  std::vector<std::unordered_map<int, Place>> places_;  // by communicator
  std::map<int, std::vector<const trace::CommOp*>> open_;
  std::unordered_map<int, const trace::CommOp*> in_;
  std::map<Lane, std::vector<const trace::CommOp*>> open_lanes_;  // ops that have not ended, in the order of launch
  // All that are told, in the order of launch, of lanes on which somebody waits and their others.
  std::map<Lane, std::vector<const trace::CommOp*>> lanes_;
};

}  // namespace lockstep::detect
