#include "lockstep/trace/kineto_match.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <tuple>

#include "lockstep/trace/kineto_told.h"
#include "lockstep/trace/untold_transfers.h"

namespace lockstep::trace {
namespace {

constexpr double kNanosPerSecond = 1e9;
constexpr double kTogether = 20e3, kTogetherShare = 0.05;  // ns, and of the transfer: ends of one communication
constexpr double kHostTogether = 2e6;                      // ns: threads of a host need their turn
constexpr double kFurthestClock = 600e9;                   // ns: further apart are no clocks but runs
constexpr double kTrustedClock = 3;                        // times the error: a smaller offset is none, if it may
constexpr double kMostly = 0.9;                            // of the untold transfers: they are exchanges of all

using OpsOfOne = std::vector<std::pair<size_t, const DeviceOp*>>;  // (rank, what it did) of a communication

// Of how many communications a member would come when it was over for another.
size_t Impossible(const std::vector<OpsOfOne>& communications, const std::vector<ClockOffset>& clocks) {
  return static_cast<size_t>(std::count_if(communications.begin(), communications.end(), [&](const OpsOfOne& members) {
    double first_end = std::numeric_limits<double>::max(), last_begin = std::numeric_limits<double>::lowest();
    const int64_t origin = members.front().second->begin_ns;
    for (const auto& [rank, op] : members) {
      const double begin = static_cast<double>(op->begin_ns - origin) + clocks[rank].At(op->begin_ns);
      last_begin = std::max(last_begin, begin);
      first_end = std::min(first_end, begin + static_cast<double>(op->duration_ns));
    }
    return last_begin > first_end;
  }));
}

}  // namespace

KinetoMatch::KinetoMatch(std::vector<KinetoRank>& ranks, const KinetoSteps& steps) : ranks_(ranks), steps_(steps) {
  std::map<std::pair<std::string, std::vector<int>>, size_t> numbers;
  for (const KinetoRank& rank : ranks) {
    std::vector<size_t>& of_rank = group_.emplace_back();
    for (const ProcessGroup& group : rank.groups)
      of_rank.push_back(numbers.emplace(std::pair(group.name, group.ranks), numbers.size()).first->second);
  }
}

std::vector<KinetoMatch::Members> KinetoMatch::Candidates(size_t step) const {
  constexpr size_t kUntold = ~size_t{0};
  enum class By : uint8_t { kOrder, kSequence, kOrderOfExchanges };
  // (group, order or sequence number, which of them, the how manieth of that number: those of a group call share it)
  std::map<std::tuple<size_t, int64_t, By, int64_t>, Members> found;
  std::map<std::tuple<size_t, int, int, int64_t>, Members> transfers;  // (group, from, to, order); of an exchange one
                                                                       // end is below 0, whoever looks
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::map<std::pair<size_t, By>, int64_t> count;
    std::map<std::pair<size_t, int64_t>, int64_t> of_number;
    std::map<std::tuple<size_t, int, int>, int64_t> transfer_count;
    for (size_t i = 0; i < steps_.ops[step][rank].collectives.size(); ++i) {
      const Collective& one = CollectiveOf(step, rank, i);
      const size_t group = one.group == kNoIndex ? kUntold : group_[rank][one.group];
      if (one.peer >= 0) {
        const int own = ranks_[rank].rank;
        int from = one.sends ? own : one.peer, to = one.sends ? one.peer : own;
        if (one.name == kExchange) from = std::max(own, one.peer), to = -1 - std::min(own, one.peer);
        transfers[{group, from, to, transfer_count[{group, from, to}]++}].emplace_back(rank, i);
        continue;
      }
      if (IsUntoldTransfer(one) && !untold_meet_) continue;
      const By by = IsTransferKernel(one.name) ? By::kOrderOfExchanges : one.sequence >= 0 ? By::kSequence : By::kOrder;
      const int64_t order = count[{group, by == By::kSequence ? By::kOrder : by}]++;
      const int64_t nth = by == By::kSequence ? of_number[{group, one.sequence}]++ : 0;
      found[{group, by == By::kSequence ? one.sequence : order, by, nth}].emplace_back(rank, i);
    }
  }
  std::vector<Members> candidates;
  for (auto& [key, members] : found)
    if (members.size() > 1 && SameName(step, members)) candidates.push_back(std::move(members));
  for (auto& [key, members] : transfers)
    if (members.size() == 2) candidates.push_back(std::move(members));
  return candidates;
}

bool KinetoMatch::SameName(size_t step, const Members& members) const {
  const auto name = [&](const auto& member) -> const std::string& {
    return CollectiveOf(step, member.first, member.second).name;
  };
  return std::all_of(members.begin(), members.end(),
                     [&](const auto& one) { return name(one) == name(members.front()); });
}

bool KinetoMatch::EndTogether(size_t step, const Members& members) const {
  int64_t first_end = INT64_MAX, last_end = INT64_MIN, last_begin = INT64_MIN;
  for (const auto& [rank, i] : members) {
    const DeviceOp& op = OpOf(step, rank, i);
    first_end = std::min(first_end, op.end_ns());
    last_end = std::max(last_end, op.end_ns());
    last_begin = std::max(last_begin, op.begin_ns);
  }
  // Threads of a host leave when their own part is done, but none before the last has come.
  const bool on_host = steps_.roles[steps_.role_of[members.front().first]].streams[members.front().second] == kNoIndex;
  if (on_host) return static_cast<double>(last_begin - first_end) <= kHostTogether;
  const double limit = std::max(kTogether, kTogetherShare * static_cast<double>(last_end - last_begin));
  return static_cast<double>(last_end - first_end) <= limit && static_cast<double>(last_begin - first_end) <= limit;
}

absl::StatusOr<std::vector<ClockOffset>> KinetoMatch::FitClocks() {
  std::vector<OpsOfOne> communications;
  std::vector<std::vector<std::pair<size_t, int64_t>>> ends;
  for (size_t step = 0; step < steps_.numbers.size(); ++step)
    for (const Members& members : Candidates(step)) {
      OpsOfOne& ops = communications.emplace_back();
      auto& of_one = ends.emplace_back();
      for (const auto& [rank, i] : members) {
        ops.emplace_back(rank, &OpOf(step, rank, i));
        of_one.emplace_back(rank, ops.back().second->end_ns());
      }
    }
  const std::vector<ClockOffset> fitted = FitDrifts(trace::FitClocks(ranks_.size(), ends), ends);
  std::vector<ClockOffset> clocks = fitted;
  double error = 0;
  for (const ClockOffset& clock : clocks) error = std::max(error, clock.error_ns);
  for (ClockOffset& clock : clocks)
    if (std::abs(clock.offset_ns) < kTrustedClock * error && clock.drift == 0) clock.offset_ns = 0;
  if (Impossible(communications, clocks) > Impossible(communications, fitted)) clocks = fitted;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const double offset = clocks[rank].offset_ns;
    if (std::abs(offset) > kFurthestClock)
      return InvalidArgument("{} is {:.0f} s away from the other ranks' files: expected files of one run",
                             ranks_[rank].path, std::abs(offset) / kNanosPerSecond);
    for (DeviceOp& op : ranks_[rank].ops) {
      const int64_t end_ns = op.end_ns() + std::llround(clocks[rank].At(op.end_ns()));
      op.begin_ns += std::llround(clocks[rank].At(op.begin_ns));
      op.duration_ns = end_ns - op.begin_ns;
      if (op.launch_ns != kNoTime) op.launch_ns += std::llround(clocks[rank].At(op.launch_ns));
    }
  }
  return clocks;
}

void KinetoMatch::MatchUntold() {
  constexpr size_t kOfATransfer = 2;  // ranks
  size_t all = 0, together = 0;
  for (size_t step = 0; step < steps_.numbers.size(); ++step) {
    std::vector<Members> nth;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      for (size_t i = 0, n = 0; i < steps_.ops[step][rank].collectives.size(); ++i) {
        if (!IsUntoldTransfer(CollectiveOf(step, rank, i))) continue;
        nth.resize(std::max(nth.size(), ++n));
        nth[n - 1].emplace_back(rank, i);
      }
    all += nth.size();
    for (const Members& members : nth)
      together += members.size() > kOfATransfer && members.size() == nth.front().size() && SameName(step, members) &&
                  EndTogether(step, members);
  }
  untold_meet_ = all > 0 && static_cast<double>(together) >= kMostly * static_cast<double>(all);
}

uint64_t KinetoMatch::UntoldTransfers(size_t rank) const {
  uint64_t count = 0;
  for (size_t i = 0; i < steps_.ops[0][rank].collectives.size() && !untold_meet_; ++i)
    if (IsUntoldTransfer(CollectiveOf(0, rank, i))) count += steps_.numbers.size();
  return count;
}

}  // namespace lockstep::trace
