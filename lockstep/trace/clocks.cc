#include "lockstep/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "lockstep/base/median.h"

namespace lockstep::trace {
namespace {

using Ends = std::vector<std::pair<size_t, int64_t>>;  // of one communication, by rank

constexpr int kRounds = 3;

std::vector<size_t> RanksOf(const Ends& members) {
  std::vector<size_t> ranks;
  ranks.reserve(members.size());
  for (const auto& [rank, end] : members) ranks.push_back(rank);
  return ranks;
}

// Puts parts of the job that share a clock already onto each other's, the largest groups first: one communication of
// all ranks says more of far ones than many of some do, which a median over all would follow.
class Coarse {
 public:
  explicit Coarse(size_t ranks) : part_(ranks), clocks_(ranks) { std::iota(part_.begin(), part_.end(), size_t{0}); }

  std::vector<ClockOffset> Fit(const std::vector<Ends>& ends) {
    std::map<std::vector<size_t>, std::vector<const Ends*>> by_ranks;
    for (const Ends& members : ends) by_ranks[RanksOf(members)].push_back(&members);
    std::vector<const std::vector<const Ends*>*> order;
    order.reserve(by_ranks.size());
    for (const auto& [ranks, of_ranks] : by_ranks) order.push_back(&of_ranks);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return a->front()->size() > b->front()->size(); });
    for (const std::vector<const Ends*>* of_ranks : order) Join(*of_ranks);
    return std::move(clocks_);
  }

 private:
  // Communications of the same ranks.
  void Join(const std::vector<const Ends*>& ends) {
    std::map<size_t, std::vector<double>> late;  // by part
    for (const auto& [rank, end] : *ends.front()) late[part_[rank]];
    if (late.size() < 2) return;
    for (const Ends* members : ends) {
      std::map<size_t, std::vector<double>> of_parts;
      std::vector<double> all;
      for (const auto& [rank, end] : *members) {
        const double relative = static_cast<double>(end - members->front().second) + clocks_[rank].offset_ns;
        of_parts[part_[rank]].push_back(relative);
        all.push_back(relative);
      }
      const double middle = MedianInPlace(all);
      for (auto& [part, relative] : of_parts) late[part].push_back(MedianInPlace(relative) - middle);
    }
    std::map<size_t, double> shift;
    for (auto& [part, values] : late) shift[part] = MedianInPlace(values);
    const size_t joined = late.begin()->first;
    for (size_t rank = 0; rank < part_.size(); ++rank)
      if (const auto found = shift.find(part_[rank]); found != shift.end()) {
        clocks_[rank].offset_ns -= found->second;
        part_[rank] = joined;
      }
  }

  std::vector<size_t> part_;  // by rank: those of one number share a clock
  std::vector<ClockOffset> clocks_;
};

}  // namespace

std::vector<ClockOffset> FitClocks(size_t ranks, const std::vector<Ends>& ends) {
  std::vector<ClockOffset> clocks = Coarse(ranks).Fit(ends);
  for (int round = 0; round <= kRounds; ++round) {
    std::vector<std::vector<double>> late(ranks);  // behind the others of the same communication
    for (const auto& members : ends) {
      if (members.size() < 2) continue;
      const int64_t origin = members.front().second;  // differences are small, times since an epoch are not
      std::vector<double> relative;
      relative.reserve(members.size());
      for (const auto& [rank, end] : members)
        relative.push_back(static_cast<double>(end - origin) + clocks[rank].offset_ns);
      std::vector<double> sorted = relative;
      const double middle = MedianInPlace(sorted);
      for (size_t i = 0; i < members.size(); ++i) late[members[i].first].push_back(relative[i] - middle);
    }
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (late[rank].empty()) continue;
      if (round < kRounds) {
        clocks[rank].offset_ns -= MedianInPlace(late[rank]);
        continue;
      }
      for (double& one : late[rank]) one = std::abs(one);
      clocks[rank].error_ns = 1.4826 * MedianInPlace(late[rank]);
    }
  }
  std::vector<double> offsets;
  offsets.reserve(clocks.size());
  for (const ClockOffset& clock : clocks) offsets.push_back(clock.offset_ns);
  if (offsets.empty()) return clocks;
  const double middle = MedianInPlace(offsets);
  for (ClockOffset& clock : clocks) clock.offset_ns -= middle;
  return clocks;
}

}  // namespace lockstep::trace
