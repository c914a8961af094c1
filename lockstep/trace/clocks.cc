#include "lockstep/trace/clocks.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
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

// What a rank's end is behind the middle of the same communication's.
struct Late {
  int64_t moment_ns;
  double ns;
};

// [rank], in the order of the communications.
std::vector<std::vector<Late>> LateEnds(const std::vector<Ends>& ends, const std::vector<ClockOffset>& clocks) {
  std::vector<std::vector<Late>> late(clocks.size());
  for (const Ends& members : ends) {
    if (members.size() < 2) continue;
    const int64_t origin = members.front().second;  // differences are small, times since an epoch are not
    std::vector<double> relative;
    relative.reserve(members.size());
    for (const auto& [rank, end] : members)
      relative.push_back(static_cast<double>(end - origin) + clocks[rank].At(end));
    std::vector<double> sorted = relative;
    const double middle = MedianInPlace(sorted);
    for (size_t i = 0; i < members.size(); ++i)
      late[members[i].first].push_back({members[i].second, relative[i] - middle});
  }
  return late;
}

double MedianOf(std::span<const Late> late, double (*value)(double)) {
  std::vector<double> values;
  values.reserve(late.size());
  for (const Late& one : late) values.push_back(value(one.ns));
  return MedianInPlace(values);
}
double Itself(double ns) { return ns; }

void ShiftAll(const std::vector<Ends>& ends, std::vector<ClockOffset>& clocks) {
  const std::vector<std::vector<Late>> late = LateEnds(ends, clocks);
  for (size_t rank = 0; rank < clocks.size(); ++rank)
    if (!late[rank].empty()) clocks[rank].offset_ns -= MedianOf(late[rank], Itself);
}

// By the medians of the earlier half and of the later one.
void TurnAll(const std::vector<Ends>& ends, std::vector<ClockOffset>& clocks) {
  constexpr size_t kEnough = 16;  // a line through fewer would fit to anything
  std::vector<std::vector<Late>> all = LateEnds(ends, clocks);
  for (size_t rank = 0; rank < clocks.size(); ++rank) {
    std::vector<Late>& late = all[rank];
    if (late.size() < kEnough) continue;
    std::ranges::sort(late, {}, &Late::moment_ns);
    const size_t half = late.size() / 2;
    const std::span<const Late> earlier(late.data(), half), later(late.data() + half, late.size() - half);
    const int64_t apart = later[later.size() / 2].moment_ns - earlier[half / 2].moment_ns;
    ClockOffset& clock = clocks[rank];
    if (clock.around_ns == 0) clock.around_ns = later.front().moment_ns;
    if (apart > 0) clock.drift -= (MedianOf(later, Itself) - MedianOf(earlier, Itself)) / static_cast<double>(apart);
  }
}

void TakeErrors(const std::vector<Ends>& ends, std::vector<ClockOffset>& clocks) {
  const std::vector<std::vector<Late>> late = LateEnds(ends, clocks);
  for (size_t rank = 0; rank < clocks.size(); ++rank)
    if (!late[rank].empty()) clocks[rank].error_ns = 1.4826 * MedianOf(late[rank], std::fabs);
}

double SumOfErrors(const std::vector<ClockOffset>& clocks) {
  return std::accumulate(clocks.begin(), clocks.end(), 0.0,
                         [](double sum, const ClockOffset& clock) { return sum + clock.error_ns; });
}

}  // namespace

std::vector<ClockOffset> FitClocks(size_t ranks, const std::vector<Ends>& ends) {
  std::vector<ClockOffset> clocks = Coarse(ranks).Fit(ends);
  for (int round = 0; round < kRounds; ++round) ShiftAll(ends, clocks);
  TakeErrors(ends, clocks);
  std::vector<double> offsets;
  offsets.reserve(clocks.size());
  for (const ClockOffset& clock : clocks) offsets.push_back(clock.offset_ns);
  const double middle = MedianInPlace(offsets);
  for (ClockOffset& clock : clocks) clock.offset_ns -= middle;
  return clocks;
}

std::vector<ClockOffset> FitDrifts(std::vector<ClockOffset> clocks, const std::vector<Ends>& ends) {
  constexpr double kUnexplained = 0.5;
  constexpr double kFastestDrift = 1e-3;  // oscillators are 50 ppm off, and NTP slews by 500
  std::vector<ClockOffset> drifting = clocks;
  for (int round = 0; round < kRounds; ++round) {
    TurnAll(ends, drifting);
    ShiftAll(ends, drifting);
  }
  const bool possible =
      std::ranges::all_of(drifting, [](const ClockOffset& clock) { return std::abs(clock.drift) < kFastestDrift; });
  if (!possible) return clocks;
  TakeErrors(ends, drifting);
  return SumOfErrors(drifting) < kUnexplained * SumOfErrors(clocks) ? drifting : clocks;
}

}  // namespace lockstep::trace
