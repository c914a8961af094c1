#include "lockstep/trace/dump_moments.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include "lockstep/base/json_at.h"

namespace lockstep::trace {
namespace {

// A collective's timeout, if nobody sets it: an incident before this one is older by more.
constexpr int64_t kFarNs = 600'000'000'000;

// A rank in a communicator's collectives, by their numbers.
struct Reach {
  static constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  const CommOp* ended = nullptr;  // the newest of those that need all members
  int64_t told = 0;               // the newest that is told
  int64_t launched = kUnknown;    // the newest, by its own counters
};
using Reaches = std::map<int, Reach>;  // by rank

std::vector<Reaches> ReachesOf(const CommLog& log) {
  std::vector<Reaches> all(log.communicators.size());
  std::vector<bool> needs_all;
  for (const std::string& function : log.functions) needs_all.push_back(NeedsAll(function));
  for (const CommOp& op : log.ops) {
    if (op.direction != Direction::kCollective) continue;
    Reach& reach = all[op.communicator][op.rank];
    reach.told = std::max(reach.told, op.sequence);
    if (op.state == OpState::kCompleted && needs_all[op.function] &&
        (reach.ended == nullptr || op.sequence > reach.ended->sequence))
      reach.ended = &op;
  }
  for (const CommCount& count : log.counts)
    if (Reach& reach = all[count.communicator][count.rank]; count.enqueued >= 0)
      reach.launched = std::max(count.enqueued, reach.told);
  return all;
}

class Finder {
 public:
  Finder(const CommLog& log, const std::map<int, DumpMoment>& moments) : log_(log), moments_(moments) {}

  DumpsApart Run() {
    for (const Reaches& reaches : ReachesOf(log_)) Compare(reaches);
    CompareWorlds();
    return std::move(apart_);
  }

 private:
  void Compare(const Reaches& reaches) {
    int64_t most = 0;
    for (const auto& [rank, reach] : reaches)
      if (reach.ended != nullptr) most = std::max(most, reach.ended->sequence);
    for (const auto& [behind, reach] : reaches) {
      if (reach.launched >= most) continue;
      for (const auto& [ahead, other] : reaches) {
        if (other.ended == nullptr || other.ended->sequence <= reach.launched) continue;
        const Communicator& communicator = log_.communicators[other.ended->communicator];
        if (apart_.why.empty())
          apart_.why = fmt::format("rank {} has ended {} {} of {} ({}), and rank {} had launched {}", ahead,
                                   log_.functions[other.ended->function], other.ended->sequence,
                                   communicator.description, communicator.name, behind,
                                   reach.launched == 0 ? "none" : fmt::format("up to {}", reach.launched));
        apart_.ranks.insert(behind);
        Part(behind, ahead);
      }
    }
  }

  void CompareWorlds() {
    std::map<std::vector<int>, int> newest;  // of each world, a rank
    for (const auto& [rank, moment] : moments_) {
      if (moment.world == nullptr) continue;
      int& one = newest.try_emplace(*moment.world, rank).first->second;
      if (Later(rank, one) > 0) one = rank;
    }
    if (newest.size() < 2) return;
    for (const auto& [rank, moment] : moments_)
      for (const auto& [world, other] : newest) {
        if (moment.world == nullptr || *moment.world == world) continue;
        if (apart_.why.empty())
          apart_.why = fmt::format("the default group has {} ranks by rank {}, and others, {}, by rank {}",
                                   moment.world->size(), rank, world.size(), other);
        if (Later(other, rank) > 0) apart_.ranks.insert(rank);
        Part(rank, other);
      }
  }

  void Part(int a, int b) {
    const int64_t later = Later(a, b);
    if (later > kFarNs) apart_.old.insert(b);
    if (later < -kFarNs) apart_.old.insert(a);
  }

  // By how much the dump of `a` is later: by what it tells, for files may be copied.
  int64_t Later(int a, int b) const {
    const DumpMoment &one = moments_.at(a), &other = moments_.at(b);
    const bool told = one.newest_ns >= 0 && other.newest_ns >= 0;
    return told ? one.newest_ns - other.newest_ns : one.written_ns - other.written_ns;
  }

  const CommLog& log_;
  const std::map<int, DumpMoment>& moments_;
  DumpsApart apart_;
};

}  // namespace

void ToldMoment::Take(const Json& entry) {
  before_ns_ = std::max(before_ns_, IntegerAt(entry, "time_created_ns", -1));
  int64_t& known_ns = BooleanAt(entry, "retired", true) ? before_ns_ : seen_ns_;
  for (const char* key : {"time_discovered_started_ns", "time_discovered_completed_ns"})
    known_ns = std::max(known_ns, IntegerAt(entry, key, -1));
}

bool NeedsAll(const std::string& function) {
  constexpr std::array<std::string_view, 6> kWords = {"all_reduce", "allreduce",      "all_gather",
                                                      "allgather",  "reduce_scatter", "barrier"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return function.find(word) != std::string::npos; });
}

DumpsApart FindApart(const CommLog& log, const std::map<int, DumpMoment>& moments) {
  return Finder(log, moments).Run();
}

}  // namespace lockstep::trace
