#include "lockstep/detect/shared_work.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "lockstep/base/median.h"

namespace lockstep::detect {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostLost = 1000;  // one of so many

}  // namespace

std::map<int, int> PipelinesOf(const trace::CommLog& log) {
  std::map<int, int> of;
  const std::function<int(int)> root = [&](int rank) {
    const auto known = of.try_emplace(rank, rank).first;
    return known->second == rank ? rank : known->second = root(known->second);
  };
  for (const trace::CommOp& op : log.ops)
    if (op.direction != trace::Direction::kCollective && op.peer >= 0) of[root(op.rank)] = root(op.peer);
  for (const trace::CommTransfer& transfer : log.transfers)
    if (transfer.sequence == trace::CommTransfer::kAlone && transfer.peer >= 0)
      of[root(transfer.rank)] = root(transfer.peer);
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

std::vector<int64_t> SharedWork::BeyondOf(const Round& round) const {
  std::vector<int64_t> took, places;
  for (const Part& part : round.parts) {
    const auto own = of_ranks_.find(part.rank);
    const auto then = own == of_ranks_.end() ? Thens::const_iterator() : own->second.then.find(round.communicator);
    const bool is_known = own != of_ranks_.end() && then != own->second.then.end();
    places.push_back(is_known ? then->second.place : kNone);
    took.push_back(is_known ? own->second.sum - then->second.sum : 0);
  }
  const int64_t newest = std::ranges::max(places);  // of others the record of that round is lost
  std::vector<int64_t> known;
  for (size_t i = 0; i < took.size(); ++i)
    if (places[i] == newest) known.push_back(took[i]);  // 0 of all, where none is
  const int64_t usual = LowerMedian(std::move(known));
  for (size_t i = 0; i < took.size(); ++i) took[i] = places[i] == newest ? took[i] - usual : 0;
  return took;
}

std::vector<int64_t> SharedWork::Add(const Round& round, int64_t alone_ns) {
  std::vector<int64_t> beyond(round.parts.size());
  if (meets_[round.communicator]) beyond = BeyondOf(round);
  for (size_t i = 0; i < beyond.size(); ++i) {
    OfRank& own = of_ranks_[round.parts[i].rank];
    const auto [then, is_first] = own.then.try_emplace(round.communicator);
    added_ += 1;
    if (!is_first) lost_ += round.place - then->second.place - 1;
    own.sum += alone_ns * round.stands_for - beyond[i];
    then->second = {own.sum, round.place};
  }
  return beyond;
}

bool SharedWork::IsWhole() const { return kMostLost * lost_ <= added_; }

}  // namespace lockstep::detect
