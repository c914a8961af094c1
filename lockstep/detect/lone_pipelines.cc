#include "lockstep/detect/lone_pipelines.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "lockstep/detect/shared_work.h"
#include "lockstep/detect/transfer_pairs.h"

namespace lockstep::detect {
namespace {

using trace::CommOp;
using trace::Direction;

// What the ranks of one pipeline send to each other.
class Exchange {
 public:
  void Add(const CommOp& op) {
    most_bytes_ = std::max(most_bytes_, op.bytes);
    AddWay(op.rank, op.peer, op.direction);
    if (op.held_up_ns < 0 || op.created_ns < 0 || op.duration_ns < 0) return;
    Held& held = held_[op.rank];
    held.ns += op.held_up_ns;
    held.begin_ns = std::min(held.begin_ns, op.created_ns);
    held.end_ns = std::max(held.end_ns, EndOf(op));
  }
  void AddWay(int rank, int peer, Direction direction) {
    ways_.insert(direction == Direction::kSend ? std::pair{rank, peer} : std::pair{peer, rank});
  }

  uint64_t most_bytes() const { return most_bytes_; }
  // To the next stage and back, in a row or, where stages are in several parts, round.
  bool IsAsOfStages() const {
    std::map<int, size_t> neighbours;
    return std::ranges::all_of(ways_, [&](const auto& way) {
      return ways_.contains({way.second, way.first}) && ++neighbours[way.first] <= 2;
    });
  }
  // Each of them sends, and each receives.
  bool IsMutual() const {
    std::set<int> senders, receivers;
    for (const auto& [sender, receiver] : ways_) {
      senders.insert(sender);
      receivers.insert(receiver);
    }
    return senders == receivers;
  }
  // The part of the time that who waits for longest does so.
  double Waited() const {
    double most = 0;
    for (const auto& [rank, held] : held_)
      most = std::max(
          most, static_cast<double>(held.ns) / static_cast<double>(std::max<int64_t>(1, held.end_ns - held.begin_ns)));
    return most;
  }

 private:
  struct Held {
    int64_t ns = 0, begin_ns = std::numeric_limits<int64_t>::max(), end_ns = 0;
  };

  uint64_t most_bytes_ = 0;
  std::set<std::pair<int, int>> ways_;  // sender and receiver
  std::map<int, Held> held_;            // by rank
};

using Pipelines = std::map<int, std::vector<int>>;  // the ranks of each
using Exchanges = std::map<int, Exchange>;          // of each

Pipelines WithoutReplicas(const trace::CommLog& log, const std::map<int, int>& of_ranks) {
  const std::vector<bool> alike = AreAlike(log, of_ranks);
  std::set<int> compared;
  for (size_t i = 0; i < alike.size(); ++i)
    if (alike[i] && log.communicators[i].ranks.size() >= 2)
      for (const int rank : log.communicators[i].ranks)
        if (const auto one = of_ranks.find(rank); one != of_ranks.end()) compared.insert(one->second);
  Pipelines pipelines;
  for (const auto& [rank, one] : of_ranks)
    if (!compared.contains(one)) pipelines[one].push_back(rank);
  std::erase_if(pipelines, [](const auto& pipeline) { return pipeline.second.size() < 2; });
  return pipelines;
}

Exchanges ExchangesOf(const trace::CommLog& log, const std::map<int, int>& of_ranks) {
  Exchanges exchanges;
  for (const CommOp& op : log.ops)
    if (op.direction != Direction::kCollective && op.peer >= 0) exchanges[of_ranks.at(op.rank)].Add(op);
  for (const trace::CommTransfer& transfer : log.transfers)
    if (transfer.sequence == trace::CommTransfer::kAlone && transfer.peer >= 0)
      exchanges[of_ranks.at(transfer.rank)].AddWay(transfer.rank, transfer.peer, transfer.direction);
  return exchanges;
}

// By communicator: the most that one rank brought to a collective.
std::vector<uint64_t> BroughtTo(const trace::CommLog& log) {
  std::vector<uint64_t> brought(log.communicators.size());
  for (const CommOp& op : log.ops)
    if (op.direction == Direction::kCollective) brought[op.communicator] = std::max(brought[op.communicator], op.bytes);
  return brought;
}

bool HoldsAll(const std::vector<int>& members, const std::vector<int>& ranks) {
  return std::ranges::all_of(ranks, [&](int rank) { return std::ranges::find(members, rank) != members.end(); });
}

}  // namespace

// Ranks that all bring as much to a collective as they send to each other, as gradients, do alike, but for stages:
// those may share an embedding.
std::vector<LonePipeline> LonePipelines(const trace::CommLog& log, double least_waited) {
  std::vector<LonePipeline> lone;
  const std::map<int, int> of_ranks = PipelinesOf(log);
  const Pipelines pipelines = WithoutReplicas(log, of_ranks);
  if (pipelines.empty()) return lone;
  const Exchanges exchanges = ExchangesOf(log, of_ranks);
  const std::vector<uint64_t> brought = BroughtTo(log);
  for (const auto& [one, ranks] : pipelines) {
    const Exchange& exchange = exchanges.at(one);
    bool alike = false;
    for (size_t i = 0; i < brought.size() && !exchange.IsAsOfStages(); ++i)
      alike = alike ||
              (brought[i] > 0 && brought[i] >= exchange.most_bytes() && HoldsAll(log.communicators[i].ranks, ranks));
    if (!alike || (exchange.IsMutual() && exchange.Waited() >= least_waited)) lone.push_back({ranks, alike});
  }
  return lone;
}

}  // namespace lockstep::detect
