#include "lockstep/detect/shared_work.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr int64_t kMostLost = 1000;  // one of so many

}  // namespace

std::map<int, int> PipelinesOf(const trace::CommLog& log) {
  std::map<int, int> of;
  const std::function<int(int)> root = [&](int rank) {
    const auto known = of.try_emplace(rank, rank).first;
    return known->second == rank ? rank : known->second = root(known->second);
  };
  absl::flat_hash_set<std::pair<int, int>> known;  // there are many messages between few
  const auto join = [&](int rank, int peer) {
    if (peer >= 0 && known.emplace(rank, peer).second) of[root(rank)] = root(peer);
  };
  for (const trace::CommOp& op : log.ops)
    if (op.direction != trace::Direction::kCollective) join(op.rank, op.peer);
  for (const trace::CommTransfer& transfer : log.transfers)
    if (transfer.sequence == trace::CommTransfer::kAlone) join(transfer.rank, transfer.peer);
  for (auto& [rank, one] : of) one = root(rank);
  return of;
}

std::vector<bool> AreAlike(const trace::CommLog& log, const std::map<int, int>& pipelines) {
  std::vector<bool> alike;
  for (const trace::Communicator& one : log.communicators) {
    std::set<int> seen;
    alike.push_back(std::ranges::all_of(one.ranks, [&](int rank) {
      const auto pipeline = pipelines.find(rank);
      return pipeline == pipelines.end() || seen.insert(pipeline->second).second;
    }));
  }
  return alike;
}

size_t CountHosts(const trace::Communicator& communicator, const trace::CommLog& log) {
  absl::flat_hash_set<std::string_view> hosts;
  for (const int rank : communicator.ranks)
    if (const auto host = log.hosts.find(rank); host != log.hosts.end()) hosts.insert(host->second);
  return hosts.size();
}

// Also where it is the first and nobody knows since when they differ. Else those whom several communicators make even
// would be so by each since another moment, and stay apart by as much.
SharedWork::Compared SharedWork::MakeEven(const Round& round) {
  std::vector<int64_t> sums;
  for (const Part& part : round.parts) sums.push_back(of_ranks_[part.rank].sum);
  const int64_t usual = LowerMedian(sums);
  const auto [even, is_first] = even_at_.try_emplace(round.communicator, usual);
  Compared compared{std::vector<int64_t>(round.parts.size()), usual - std::exchange(even->second, usual)};
  for (size_t i = 0; i < round.parts.size(); ++i) {
    OfRank& own = of_ranks_[round.parts[i].rank];
    if (!is_first && own.has_met) compared.beyond_ns[i] = sums[i] - usual;
    own.has_met = true;
    own.sum = usual;
  }
  return compared;
}

SharedWork::Compared SharedWork::Add(const Round& round, int64_t alone_ns) {
  Compared compared;
  if (meets_[round.communicator]) compared = MakeEven(round);
  for (const Part& part : round.parts) {
    OfRank& own = of_ranks_[part.rank];
    own.sum += alone_ns * round.stands_for;
    const auto [place, is_first] = own.places.try_emplace(round.communicator, round.place);
    added_ += 1;
    if (!is_first) lost_ += round.place - std::exchange(place->second, round.place) - 1;
  }
  return compared;
}

bool SharedWork::IsWhole() const { return kMostLost * lost_ <= added_; }

}  // namespace lockstep::detect
