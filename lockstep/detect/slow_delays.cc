#include "lockstep/detect/slow_delays.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::CommTransfer;
using trace::Direction;
using Transfers = std::vector<const CommTransfer*>;

// Since the last member came.
double LengthOf(const Round& round) {
  int64_t came = 0, left = 0;
  for (const Part& part : round.parts) {
    came = std::max(came, part.came_ns);
    left = std::max(left, part.left_ns);
  }
  return static_cast<double>(left - came);
}

int MagnitudeOf(uint64_t bytes) { return static_cast<int>(std::bit_width(bytes)); }

const Part* PartOf(const Round& round, int rank) {
  const auto found = std::lower_bound(round.parts.begin(), round.parts.end(), rank,
                                      [](const Part& part, int wanted) { return part.rank < wanted; });
  return found != round.parts.end() && found->rank == rank ? &*found : nullptr;
}

// What the network took for messages to a receiver that was ready. It tells of the way between the two and of nothing
// else, whatever the collective.
bool AddWire(const Transfers& transfers, const Round& round, Delays& delays) {
  bool any = false;
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kSend || transfer->wire_ns < 0) continue;
    any = true;
    const MessageClass alike{MagnitudeOf(transfer->bytes / transfer->count), MessageClass::Measure::kWire,
                             round.function, round.parts.size()};
    const double messages = transfer->count;
    delays[alike][{transfer->rank, transfer->peer, transfer->port}].push_back(
        {static_cast<double>(transfer->wire_ns) / messages, messages, LengthOf(round)});
  }
  return any;
}

// How many pieces each member of a ring hears: n - 1, and what they came to once more. Of fewer elements than members
// some pieces are empty, and left out.
size_t PiecesOf(const trace::CommLog& log, const Round& round) {
  const bool twice = round.function < log.functions.size() && log.functions[round.function] == "all_reduce";
  return (twice ? 2 : 1) * (round.parts.size() - 1);
}

// How long the first message of each way was under way. Only where each member hears from one other, and sends it
// something before that: there it depends on nothing but its two ends. In a tree, say, or where a few elements go
// round, the sender may itself have waited.
void AddFirst(const trace::CommLog& log, const Transfers& transfers, const Round& round, Delays& delays) {
  std::map<int, const CommTransfer*> of_rank;
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kReceive) continue;
    const CommTransfer* known = of_rank.emplace(transfer->rank, transfer).first->second;
    if (known->peer != transfer->peer) return;
    if (!round.ring && transfer->count < PiecesOf(log, round)) return;
  }
  if (!round.ring && of_rank.size() != round.parts.size()) return;
  const MessageClass alike{MagnitudeOf(round.bytes), MessageClass::Measure::kFirst, round.function, round.parts.size()};
  for (const auto& [rank, transfer] : of_rank) {
    if (transfer->first_ns < 0) continue;
    const Part *receiver = PartOf(round, rank), *sender = PartOf(round, transfer->peer);
    // Without it the collector did not see when they came, but when they were launched.
    if (receiver == nullptr || sender == nullptr || receiver->alone_ns < 0 || sender->alone_ns < 0) continue;
    const int64_t there = receiver->came_ns + transfer->first_ns;
    const int64_t both = std::max(receiver->came_ns, sender->came_ns);
    delays[alike][{transfer->peer, rank, transfer->port}].push_back(
        {static_cast<double>(std::max<int64_t>(0, there - both)), 1, LengthOf(round)});
  }
}

// Sends outside of collectives whose time on the wire is known (NCCL).
void AddWireAlone(const trace::CommLog& log, const Rounds& rounds, Delays& delays) {
  std::vector<const CommTransfer*> sends;
  for (const CommTransfer& transfer : log.transfers)
    if (transfer.sequence == CommTransfer::kAlone && transfer.direction == Direction::kSend && transfer.count > 0 &&
        transfer.wire_ns >= 0 && transfer.ended_ns >= rounds.begin_ns && transfer.ended_ns <= rounds.end_ns)
      sends.push_back(&transfer);
  std::ranges::sort(sends, {}, [](const CommTransfer* send) { return send->ended_ns; });
  for (const CommTransfer* send : sends) {
    const MessageClass alike{MagnitudeOf(send->bytes / send->count), MessageClass::Measure::kWire};
    const double took = static_cast<double>(send->wire_ns), messages = send->count;
    delays[alike][{send->rank, send->peer, send->port}].push_back({took / messages, messages, took});
  }
}

// Sends of one rank and the receives of another, in one communicator, each by its launch.
struct Lane {
  std::vector<const CommOp*> sends, receives;
};

int64_t EndOf(const CommOp& op) { return op.created_ns + op.duration_ns; }

// Those that belong to each other, though some of either may be lost: nothing is received before it is sent, and gloo
// sends nothing before the receiver is ready, so a send does not end before its receive begins. Clocks may be apart.
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

// Sends outside of collectives of which both ends are told (gloo). When a message was there is known only where
// somebody was waiting for it then.
void AddAlone(const trace::CommLog& log, const Rounds& rounds, Delays& delays) {
  constexpr int64_t kHeldUp = 50'000;
  std::map<std::tuple<uint32_t, int, int>, Lane> lanes;  // by communicator, sender and receiver
  for (const CommOp& op : log.ops) {
    if (op.direction == Direction::kCollective || op.state != trace::OpState::kCompleted || op.peer < 0 ||
        op.created_ns < rounds.begin_ns || op.duration_ns < 0 || EndOf(op) > rounds.end_ns || op.held_up_ns < 0)
      continue;
    const bool sends = op.direction == Direction::kSend;
    Lane& lane = lanes[{op.communicator, sends ? op.rank : op.peer, sends ? op.peer : op.rank}];
    (sends ? lane.sends : lane.receives).push_back(&op);
  }
  for (auto& [ends, lane] : lanes) {
    for (auto* ops : {&lane.sends, &lane.receives})
      std::ranges::sort(*ops, {}, [](const CommOp* op) { return op->created_ns; });
    for (const auto& [send, receive] : PairsOf(lane)) {
      if (receive->held_up_ns < kHeldUp) continue;
      const auto took =
          static_cast<double>(std::max<int64_t>(0, EndOf(*receive) - std::max(send->created_ns, receive->created_ns)));
      const MessageClass alike{MagnitudeOf(send->bytes), MessageClass::Measure::kAlone};
      delays[alike][{send->rank, receive->rank, 0}].push_back({took, 1, static_cast<double>(receive->held_up_ns)});
    }
  }
}

}  // namespace

Delays DelaysOf(const trace::CommLog& log, const Rounds& rounds) {
  std::map<std::pair<uint32_t, int64_t>, Transfers> by_round;
  for (const CommTransfer& transfer : log.transfers)
    if (transfer.count > 0) by_round[{transfer.communicator, transfer.sequence}].push_back(&transfer);
  Delays delays;
  for (const Round& round : rounds.all) {
    const auto found = by_round.find({round.communicator, round.sequence});
    if (found != by_round.end() && !AddWire(found->second, round, delays)) AddFirst(log, found->second, round, delays);
  }
  AddWireAlone(log, rounds, delays);
  AddAlone(log, rounds, delays);
  return delays;
}

}  // namespace lockstep::detect
