#include "lockstep/detect/comm_circle_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;

// Of ops of a rank: those of one kind have an order that all who take part share.
using Kind = std::tuple<uint32_t, Direction, int>;  // communicator, direction, peer
Kind KindOf(const CommOp& op) {
  return {op.communicator, op.direction, op.direction == Direction::kCollective ? -1 : op.peer};
}
// What `op`, in which another waits for the rank, is on the rank's side.
Kind OtherKindOf(const CommOp& op) {
  if (op.direction == Direction::kCollective) return KindOf(op);
  return {op.communicator, op.direction == Direction::kSend ? Direction::kReceive : Direction::kSend, op.rank};
}

// What a rank launched, in its order.
using Program = std::vector<const CommOp*>;

// `in` comes before the next op of `other`. True: so did earlier ones, for between two of `other` there were as many of
// its kind once, and between two of its kind as many of `other` as before `in`.
bool ComesBefore(const Program& program, const CommOp& in, const Kind& other) {
  const Kind kind = KindOf(in);
  int since_other = -1, since_kind = -1;  // of the kind, and of `other`; less than 0: none was launched yet
  int most = 0;
  std::set<int> others;
  for (const CommOp* op : program) {
    const Kind one = KindOf(*op);
    if (one == other) {
      most = std::max(most, since_other);
      since_other = 0;
      since_kind += since_kind < 0 ? 0 : 1;
    }
    if (one != kind) continue;
    since_other += since_other < 0 ? 0 : 1;
    if (op == &in) return since_other > 0 && since_other <= most && others.contains(since_kind);
    if (since_kind >= 0) others.insert(since_kind);
    since_kind = 0;
  }
  return false;
}

// The other ends of what it waits in may be launched. Of what runs together one that is there on both sides holds it.
bool MayNotWait(const Wait& wait) { return wait.guessed && wait.together.empty(); }

}  // namespace

CircleOrders::CircleOrders(const Standing& standing, const Waits& waits, const std::vector<std::vector<int>>& circles)
    : standing_(standing), waits_(waits) {
  for (const std::vector<int>& ranks : circles)
    for (const int rank : ranks) programs_[rank];
  if (programs_.empty()) return;
  for (const CommOp& op : standing_.log().ops)
    if (const auto program = programs_.find(op.rank); program != programs_.end()) program->second.push_back(&op);
  const auto order = [](const CommOp* op) { return op->order; };
  for (auto& [rank, program] : programs_) {
    std::ranges::stable_sort(program, {}, order);
    const auto twice = std::ranges::unique(program, {}, order);
    program.erase(twice.begin(), twice.end());
  }
}

CircleOrder CircleOrders::Of(const std::vector<int>& circle) const {
  CircleOrder order{true, {}};
  std::set<int> behind;  // have not launched what others wait in
  const auto look = [&](int rank, const CommOp& op) {
    if (!std::ranges::binary_search(circle, rank)) return;
    if (!HasLaunched(rank, op)) behind.insert(rank);
    order.as_before = order.as_before && IsAsBefore(rank, op);
  };
  std::set<const Wait*> seen;
  for (const int member : circle) {
    const Wait* wait = waits_.Of(member);
    if (!seen.insert(wait).second) continue;
    if (wait->apart.empty())
      for (const int rank : wait->behind) look(rank, *wait->op);
    for (const CommOp* op : wait->apart) look(op->peer, *op);
  }
  std::ranges::copy_if(behind, std::back_inserter(order.may_hang),
                       [&](int rank) { return order.as_before || MayNotWait(*waits_.Of(rank)); });
  return order;
}

// Others wait in `op` for the rank.
bool CircleOrders::HasLaunched(int rank, const CommOp& op) const {
  if (op.direction != Direction::kCollective)
    return standing_.Counterpart(op) != nullptr || standing_.PeerHasLaunched(op).value_or(false);
  return standing_.PlaceOf(op.communicator, rank).enqueued >= op.sequence;
}

bool CircleOrders::IsAsBefore(int rank, const CommOp& op) const {
  const CommOp* in = standing_.InOf(rank);
  return in != nullptr && ComesBefore(programs_.at(rank), *in, OtherKindOf(op));
}

}  // namespace lockstep::detect
