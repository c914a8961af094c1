#include "lockstep/detect/slow_delays.h"

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "lockstep/detect/transfer_pairs.h"

namespace lockstep::detect {
namespace {

using trace::CommTransfer;
using trace::Direction;
using Transfers = std::vector<const CommTransfer*>;
using Collected = std::map<MessageClass, std::vector<std::pair<Way, DelaySample>>>;

// Of each round, in the order of the log.
std::vector<Transfers> TransfersOf(const trace::CommLog& log, const Rounds& rounds) {
  absl::flat_hash_map<std::pair<uint32_t, int64_t>, size_t> index;
  index.reserve(rounds.all.size());
  for (size_t i = 0; i < rounds.all.size(); ++i) index[{rounds.all[i].communicator, rounds.all[i].sequence}] = i;
  std::vector<Transfers> of_rounds(rounds.all.size());
  for (const CommTransfer& transfer : log.transfers)
    if (const auto round = index.find({transfer.communicator, transfer.sequence});
        round != index.end() && transfer.count > 0)
      of_rounds[round->second].push_back(&transfer);
  return of_rounds;
}

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

// What the network took for messages to a receiver that was ready. It tells of the way between the two, and of how
// many messages share its port: so it is compared within one kind of collective, an all-to-all say.
bool AddWire(const Transfers& transfers, const Round& round, Collected& delays) {
  bool any = false;
  const double length = LengthOf(round);
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kSend || transfer->wire_ns < 0) continue;
    any = true;
    const MessageClass alike{MagnitudeOf(transfer->bytes / transfer->count), MessageClass::Measure::kWire,
                             round.function, round.members};
    const double messages = transfer->count, all = static_cast<double>(round.stands_for);
    delays[alike].push_back(
        {{transfer->rank, transfer->peer, transfer->port},
         {static_cast<double>(transfer->wire_ns) / messages, messages * all, length * all, round.began_ns}});
  }
  return any;
}

// How many pieces each member of a ring hears: n - 1, and what they came to once more. Of fewer elements than members
// some pieces are empty, and left out.
size_t PiecesOf(const trace::CommLog& log, const Round& round) {
  const bool twice = round.function < log.functions.size() && log.functions[round.function] == "all_reduce";
  return (twice ? 2 : 1) * (round.members - 1);
}

// How long the first message of each way was under way. Only where each member hears from one other, and sends it
// something before that: there it depends on nothing but its two ends. In a tree, say, or where a few elements go
// round, the sender may itself have waited.
void AddFirst(const trace::CommLog& log, const Transfers& transfers, const Round& round, Collected& delays) {
  std::map<int, const CommTransfer*> of_rank;
  for (const CommTransfer* transfer : transfers) {
    if (transfer->direction != Direction::kReceive) continue;
    const CommTransfer* known = of_rank.emplace(transfer->rank, transfer).first->second;
    if (known->peer != transfer->peer) return;
    if (!round.ring && transfer->count < PiecesOf(log, round)) return;
  }
  if (!round.ring && of_rank.size() != round.members) return;
  const MessageClass alike{MagnitudeOf(round.bytes), MessageClass::Measure::kFirst, round.function, round.members};
  const auto all = static_cast<double>(round.stands_for);
  for (const auto& [rank, transfer] : of_rank) {
    if (transfer->first_ns < 0) continue;
    const Part *receiver = PartOf(round, rank), *sender = PartOf(round, transfer->peer);
    // Without it the collector did not see when they came, but when they were launched.
    if (receiver == nullptr || sender == nullptr || receiver->alone_ns < 0 || sender->alone_ns < 0) continue;
    const int64_t there = receiver->came_ns + transfer->first_ns;
    const int64_t both = std::max(receiver->came_ns, sender->came_ns);
    delays[alike].push_back(
        {{transfer->peer, rank, transfer->port},
         {static_cast<double>(std::max<int64_t>(0, there - both)), all, LengthOf(round) * all, round.began_ns}});
  }
}

// Sends outside of collectives whose time on the wire is known (NCCL). Returns their communicators.
absl::flat_hash_set<uint32_t> AddWireAlone(const trace::CommLog& log, const Rounds& rounds, Collected& delays) {
  absl::flat_hash_set<uint32_t> communicators;
  for (const CommTransfer& send : log.transfers) {
    if (send.sequence != CommTransfer::kAlone || send.direction != Direction::kSend || send.count == 0 ||
        send.wire_ns < 0 || send.ended_ns > rounds.end_ns)
      continue;
    const MessageClass alike{MagnitudeOf(send.bytes / send.count), MessageClass::Measure::kWire};
    const double took = static_cast<double>(send.wire_ns), messages = send.count;
    delays[alike].push_back({{send.rank, send.peer, send.port}, {took / messages, messages, took, send.ended_ns}});
    communicators.insert(send.communicator);
  }
  return communicators;
}

// Sends outside of collectives of which both ends are told (gloo), in communicators of which the wire's times are not.
// When a message was there is known only where somebody was waiting for it then.
void AddAlone(const trace::CommLog& log, const Rounds& rounds, const absl::flat_hash_set<uint32_t>& by_wire,
              Collected& delays) {
  for (const auto& [ends, lane] : LanesOf(log, rounds.end_ns)) {
    if (by_wire.contains(std::get<0>(ends))) continue;
    for (const auto& [send, receive] : PairsOf(lane)) {
      if (receive->held_up_ns < kHeldUpNs) continue;
      const auto took =
          static_cast<double>(std::max<int64_t>(0, EndOf(*receive) - std::max(send->created_ns, receive->created_ns)));
      const MessageClass alike{MagnitudeOf(send->bytes), MessageClass::Measure::kAlone};
      delays[alike].push_back(
          {{send->rank, receive->rank, 0}, {took, 1, static_cast<double>(receive->held_up_ns), send->created_ns}});
    }
  }
}

std::vector<WayDelays> ByWay(const std::vector<std::pair<Way, DelaySample>>& collected) {
  absl::flat_hash_map<Way, uint32_t> index;
  std::vector<WayDelays> ways;
  std::vector<size_t> counts;
  std::vector<uint32_t> of;
  of.reserve(collected.size());
  for (const auto& [way, sample] : collected) {
    const auto [known, is_new] = index.try_emplace(way, static_cast<uint32_t>(ways.size()));
    if (is_new) {
      ways.push_back({way, {}});
      counts.push_back(0);
    }
    ++counts[known->second];
    of.push_back(known->second);
  }
  for (size_t i = 0; i < ways.size(); ++i) ways[i].samples.reserve(counts[i]);
  for (size_t i = 0; i < of.size(); ++i) ways[of[i]].samples.push_back(collected[i].second);
  for (WayDelays& one : ways)
    if (!std::ranges::is_sorted(one.samples, {}, &DelaySample::at_ns))
      std::ranges::stable_sort(one.samples, {}, &DelaySample::at_ns);
  std::ranges::sort(ways, {}, &WayDelays::way);
  return ways;
}

}  // namespace

Delays DelaysOf(const trace::CommLog& log, const Rounds& rounds) {
  Collected collected;
  const std::vector<Transfers> of_rounds = TransfersOf(log, rounds);
  for (size_t i = 0; i < of_rounds.size(); ++i)
    if (!of_rounds[i].empty() && !AddWire(of_rounds[i], rounds.all[i], collected))
      AddFirst(log, of_rounds[i], rounds.all[i], collected);
  AddAlone(log, rounds, AddWireAlone(log, rounds, collected), collected);
  Delays delays;
  for (const auto& [alike, samples] : collected) delays[alike] = ByWay(samples);
  return delays;
}

}  // namespace lockstep::detect
