#include "lockstep/detect/comm_standing.h"

#include <algorithm>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;
using trace::OpState;

bool IsAlike(const CommOp& op, uint32_t communicator, Direction direction, int peer) {
  return op.communicator == communicator && op.direction == direction && op.peer == peer;
}

// A send ends without the receiver's help where there is room on the way, and the rank goes on meanwhile.
const CommOp* OldestThatBlocks(const std::vector<const CommOp*>& ops) {
  const auto first =
      std::find_if(ops.begin(), ops.end(), [](const CommOp* op) { return op->direction != Direction::kSend; });
  return first != ops.end() ? *first : ops.front();
}

}  // namespace

std::vector<int> NoReport(const trace::CommLog& log) {
  std::set<int> missing;
  for (const trace::Communicator& communicator : log.communicators)
    for (const int rank : communicator.ranks)
      if (!std::binary_search(log.reported.begin(), log.reported.end(), rank)) missing.insert(rank);
  return {missing.begin(), missing.end()};
}

Standing::Standing(const trace::CommLog& log)
    : log_(log), reported_(log.reported.begin(), log.reported.end()), places_(log.communicators.size()) {
  std::vector<bool> waited_in(places_.size());
  for (const CommOp& op : log.ops) {
    if (op.state == OpState::kCompleted) continue;
    open_[op.rank].push_back(&op);
    waited_in[op.communicator] = true;
  }
  if (open_.empty()) return;
  for (const CommOp& op : log.ops)
    if (waited_in[op.communicator]) Take(op);
  for (const trace::CommCount& count : log.counts)
    if (waited_in[count.communicator]) Take(count);
  for (auto& [rank, ops] : open_) {
    std::sort(ops.begin(), ops.end(), [](const CommOp* a, const CommOp* b) { return a->order < b->order; });
    const auto twice =
        std::unique(ops.begin(), ops.end(), [](const CommOp* a, const CommOp* b) { return a->order == b->order; });
    ops.erase(twice, ops.end());  // what was told twice
    in_[rank] = OldestThatBlocks(ops);
  }
  CountLanes();
}

Standing::Lane Standing::OtherLaneOf(const CommOp& op) {
  return {op.communicator, op.peer, op.direction == Direction::kSend ? Direction::kReceive : Direction::kSend, op.rank};
}

void Standing::CountLanes() {
  for (const auto& [rank, ops] : open_)
    for (const CommOp* op : ops) {
      if (op->direction == Direction::kCollective || op->peer < 0) continue;
      launched_[LaneOf(*op)];
      launched_[OtherLaneOf(*op)];
    }
  if (launched_.empty()) return;
  for (const CommOp& op : log_.ops) {
    if (op.direction == Direction::kCollective) continue;
    if (const auto lane = launched_.find(LaneOf(op)); lane != launched_.end()) lane->second.push_back(op.order);
  }
  for (auto& [lane, orders] : launched_) {
    std::sort(orders.begin(), orders.end());
    orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
  }
}

void Standing::Take(const CommOp& op) {
  if (op.direction != Direction::kCollective) return;
  Place& place = places_[op.communicator][op.rank];
  place.enqueued = std::max(place.enqueued, op.sequence);
  if (op.state == OpState::kCompleted) place.ended = std::max(place.ended, op.sequence);
  if (op.state != OpState::kCompleted && (place.front == Place::kNone || op.sequence < place.front))
    place.front = op.sequence;
}

void Standing::Take(const trace::CommCount& count) {
  if (count.enqueued < 0) return;
  Place& place = places_[count.communicator][count.rank];
  place.counted = true;
  place.enqueued = std::max(place.enqueued, count.enqueued);
  const int64_t ended = std::max(count.completed, place.ended);  // counters may lag behind
  if (place.front == Place::kNone && count.completed >= 0 && ended < place.enqueued) place.front = ended + 1;
}

const CommOp* Standing::InOf(int rank) const {
  const auto found = in_.find(rank);
  return found == in_.end() ? nullptr : found->second;
}

bool Standing::IsIn(int rank, const CommOp& op) const {
  const CommOp* in = InOf(rank);
  return in != nullptr && in->direction == Direction::kCollective && in->communicator == op.communicator &&
         in->sequence == op.sequence;
}

Place Standing::PlaceOf(uint32_t communicator, int rank) const {
  const auto found = places_[communicator].find(rank);
  return found == places_[communicator].end() ? Place{} : found->second;
}

// The n-th send from one rank to another is the n-th receive.
const CommOp* Standing::Counterpart(const CommOp& op) const {
  const Direction other = op.direction == Direction::kSend ? Direction::kReceive : Direction::kSend;
  const auto at_peer = open_.find(op.peer);
  if (at_peer == open_.end()) return nullptr;
  int64_t before = 0;
  for (const CommOp* one : open_.at(op.rank))
    if (one->order < op.order && IsAlike(*one, op.communicator, op.direction, op.peer)) ++before;
  for (const CommOp* one : at_peer->second)
    if (IsAlike(*one, op.communicator, other, op.rank) && before-- == 0) return one;
  return nullptr;
}

// As many on either side. What was lost of the waiting rank's own lets its op seem to be an earlier one, what was lost
// of its peer's lets those seem too few.
std::optional<bool> Standing::PeerHasLaunched(const CommOp& op) const {
  const std::vector<int64_t>& own = launched_.at(LaneOf(op));
  const auto until = std::upper_bound(own.begin(), own.end(), op.order) - own.begin();
  const bool enough = std::ssize(launched_.at(OtherLaneOf(op))) >= until;
  return log_.whole.contains(enough ? op.rank : op.peer) ? std::optional(enough) : std::nullopt;
}

}  // namespace lockstep::detect
