#include "lockstep/detect/comm_standing.h"

#include <algorithm>
#include <iterator>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;
using trace::OpState;

// In the order of launch; what was told twice is there once.
void Sort(std::vector<const CommOp*>& ops) {
  std::sort(ops.begin(), ops.end(), [](const CommOp* a, const CommOp* b) { return a->order < b->order; });
  const auto twice =
      std::unique(ops.begin(), ops.end(), [](const CommOp* a, const CommOp* b) { return a->order == b->order; });
  ops.erase(twice, ops.end());
}

size_t Before(const std::vector<const CommOp*>& lane, const CommOp& op) {
  const auto first = std::lower_bound(lane.begin(), lane.end(), op.order,
                                      [](const CommOp* one, int64_t order) { return one->order < order; });
  return static_cast<size_t>(first - lane.begin());
}

// A send ends without the receiver's help where there is room on the way, and the rank goes on meanwhile.
const CommOp* OldestThatBlocks(const std::vector<const CommOp*>& ops) {
  const auto first =
      std::find_if(ops.begin(), ops.end(), [](const CommOp* op) { return op->direction != Direction::kSend; });
  return first != ops.end() ? *first : ops.front();
}

}  // namespace

bool RunTogether(const CommOp& a, const CommOp& b) { return a.batch != CommOp::kAlone && a.batch == b.batch; }

std::vector<int> NoReport(const trace::CommLog& log) {
  std::set<int> missing;
  std::ranges::set_difference(log.world, log.reported, std::inserter(missing, missing.end()));
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
    Sort(ops);
    in_[rank] = OldestThatBlocks(ops);
  }
  FillLanes();
}

Standing::Lane Standing::OtherLaneOf(const CommOp& op) {
  return {op.communicator, op.peer, op.direction == Direction::kSend ? Direction::kReceive : Direction::kSend, op.rank};
}

void Standing::FillLanes() {
  for (const auto& [rank, ops] : open_)
    for (const CommOp* op : ops) {
      if (op->direction == Direction::kCollective || op->peer < 0) continue;
      open_lanes_[LaneOf(*op)].push_back(op);
      lanes_[LaneOf(*op)];
      lanes_[OtherLaneOf(*op)];
    }
  if (lanes_.empty()) return;
  for (const CommOp& op : log_.ops) {
    if (op.direction == Direction::kCollective) continue;
    if (const auto lane = lanes_.find(LaneOf(op)); lane != lanes_.end()) lane->second.push_back(&op);
  }
  for (auto& [lane, ops] : lanes_) Sort(ops);
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

std::vector<const CommOp*> Standing::Together(const CommOp& op) const {
  std::vector<const CommOp*> together;
  for (const CommOp* one : open_.at(op.rank))
    if (one == &op || RunTogether(*one, op)) together.push_back(one);
  return together;
}

std::vector<const CommOp*> Standing::SendsBefore(int rank) const {
  std::vector<const CommOp*> sends;
  const CommOp* in = InOf(rank);
  if (in == nullptr) return sends;
  for (const CommOp* one : open_.at(rank))
    if (one->direction == Direction::kSend && one->order < in->order && !RunTogether(*one, *in)) sends.push_back(one);
  return sends;
}

// The n-th send from one rank to another is the n-th receive.
const CommOp* Standing::Counterpart(const CommOp& op) const {
  const auto others = open_lanes_.find(OtherLaneOf(op));
  if (others == open_lanes_.end()) return nullptr;
  const size_t before = Before(open_lanes_.at(LaneOf(op)), op);
  return before < others->second.size() ? others->second[before] : nullptr;
}

bool Standing::IsInOtherEnd(const CommOp& op) const {
  const CommOp *other = Counterpart(op), *in = InOf(op.peer);
  return other != nullptr && (in == other || RunTogether(*in, *other));
}

// As many on either side. What was lost of the waiting rank's own lets its op seem to be an earlier one, what was lost
// of its peer's lets those seem too few.
std::optional<bool> Standing::PeerHasLaunched(const CommOp& op) const {
  const bool enough = lanes_.at(OtherLaneOf(op)).size() > Before(lanes_.at(LaneOf(op)), op);
  return log_.whole.contains(enough ? op.rank : op.peer) ? std::optional(enough) : std::nullopt;
}

const CommOp* Standing::OtherEnd(const CommOp& op) const {
  const std::vector<const CommOp*>& others = lanes_.at(OtherLaneOf(op));
  const size_t before = Before(lanes_.at(LaneOf(op)), op);
  const bool told = log_.whole.contains(op.rank) && log_.whole.contains(op.peer);
  return told && before < others.size() ? others[before] : nullptr;
}

}  // namespace lockstep::detect
