#include "lockstep/detect/transfer_pairs.h"

#include <algorithm>

namespace lockstep::detect {

using trace::CommOp;
using trace::Direction;

Lanes LanesOf(const trace::CommLog& log, int64_t until_ns) {
  Lanes lanes;
  for (const CommOp& op : log.ops) {
    if (op.direction == Direction::kCollective || op.state != trace::OpState::kCompleted || op.peer < 0 ||
        op.created_ns < 0 || op.duration_ns < 0 || EndOf(op) > until_ns || op.held_up_ns < 0)
      continue;
    const bool sends = op.direction == Direction::kSend;
    Lane& lane = lanes[{op.communicator, sends ? op.rank : op.peer, sends ? op.peer : op.rank}];
    (sends ? lane.sends : lane.receives).push_back(&op);
  }
  for (auto& [ends, lane] : lanes)
    for (auto* ops : {&lane.sends, &lane.receives})
      std::ranges::sort(*ops, {}, [](const CommOp* op) { return op->created_ns; });
  return lanes;
}

std::vector<std::pair<const CommOp*, const CommOp*>> PairsOf(const Lane& lane) {
  constexpr int64_t kApart = 1'000'000;
  std::vector<std::pair<const CommOp*, const CommOp*>> pairs;
  for (size_t i = 0, j = 0; i < lane.sends.size() && j < lane.receives.size();) {
    const CommOp &send = *lane.sends[i], &receive = *lane.receives[j];
    if (EndOf(receive) + kApart < send.created_ns) {
      ++j;
    } else if (EndOf(send) + kApart < receive.created_ns) {
      ++i;
    } else if (send.bytes != receive.bytes) {  // one of them belongs to what is lost
      send.created_ns < receive.created_ns ? ++i : ++j;
    } else {
      pairs.emplace_back(&send, &receive);
      ++i, ++j;
    }
  }
  return pairs;
}

}  // namespace lockstep::detect
