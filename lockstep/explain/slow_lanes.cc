#include "lockstep/explain/slow_lanes.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace lockstep::explain {
namespace {

constexpr double kSlower = 1.03;   // times what is usual: worth a look
constexpr double kAllSteps = 0.9;  // slow in more of the steps that tell than this: always
constexpr double kSilent = 0.25;   // of the steps do not tell at most: else it is they that are usual
constexpr double kMostly = 0.45;   // of what it loses, and it is the run: of two alike, either

// The run of values whose sum above `level` is largest: [first, last].
std::pair<size_t, size_t> HighestRun(const std::vector<double>& values, double level) {
  std::pair<size_t, size_t> best{0, 0};
  double sum = 0, highest = -1;
  size_t begin = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (sum <= 0) sum = 0, begin = i;
    sum += values[i] - level;
    if (sum > highest) highest = sum, best = {begin, i};
  }
  return best;
}

class Worker {
 public:
  Worker(const Passes& passes, int dp, int stage) : passes_(passes), stage_(stage), lanes_(passes.LanesOf(dp)) {
    slowness_.reserve(lanes_.size());
    for (const size_t lane : lanes_) slowness_.push_back(Slowness(lane));
  }

  std::optional<SlowLanes> Find(double usual_spread) const {
    if (slowness_.empty()) return std::nullopt;
    SlowLanes slow = Pick();
    slow.always = slow.lanes.size() == lanes_.size();
    for (int pass = 0; pass < kPasses; ++pass)
      slow.ratios[static_cast<size_t>(pass)] = Ratio(passes_, pass, stage_, slow.lanes);
    const double slowest = *std::max_element(slow.ratios.begin(), slow.ratios.end());
    if (slowest < kSlower || (slow.always && slowest < 1 + ByChance(usual_spread, lanes_.size()))) return std::nullopt;
    return slow;
  }

 private:
  // All; or those of the run that costs most; or, where no run has half of it, wherever it is slow.
  SlowLanes Pick() const {
    const double excess = std::max(TypicalExcess(), kSlower - 1);
    if (IsAlways(excess)) return {lanes_, false, true, {}};
    const double half = 1 + excess / 2;
    const auto [first, last] = HighestRun(slowness_, half);
    double in_run = 0, in_all = 0;
    for (size_t i = 0; i < slowness_.size(); ++i) {
      if (slowness_[i] <= half) continue;
      in_all += slowness_[i] - 1;
      if (i >= first && i <= last) in_run += slowness_[i] - 1;
    }
    if (in_run < kMostly * in_all) return {Above(half), false, false, {}};
    return {Above(1 + excess / 4, first, last), false, true, {}};
  }

  // In all steps but a few of those that tell. On a busy machine the others may be held up in a step: then a worker
  // that takes as long as ever looks like them, and that step does not tell.
  bool IsAlways(double excess) const {
    const auto all = static_cast<double>(lanes_.size());
    double slow = 0, silent = 0;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (slowness_[i] > 1 + excess / 4)
        ++slow;
      else if (slowness_[i] * passes_.Pace(lanes_[i]) > 1 + excess / 2)
        ++silent;
    }
    return slow > kAllSteps * (all - (silent <= kSilent * all ? silent : 0));
  }

  // Where it is slower than that.
  Lanes Above(double level, size_t first = 0, size_t last = std::numeric_limits<size_t>::max()) const {
    Lanes lanes;
    for (size_t i = first; i <= std::min(last, lanes_.size() - 1); ++i)
      if (slowness_[i] > level) lanes.push_back(lanes_[i]);
    return lanes;
  }

  // By how much it is slower than usual where it is slow: half of all that it loses, it loses where it is so slow or
  // slower. What is slower in most steps by chance hardly counts.
  double TypicalExcess() const {
    std::vector<double> excesses;
    double sum = 0;
    for (const double value : slowness_)
      if (value > (1 + kSlower) / 2) excesses.push_back(value - 1), sum += value - 1;
    std::sort(excesses.begin(), excesses.end(), std::greater<>());
    double so_far = 0;
    for (const double excess : excesses)
      if (so_far += excess; so_far >= sum / 2) return excess;
    return 0;
  }

  // Of both passes, by the time that they take.
  double Slowness(size_t lane) const {
    double sum = 0, weight = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      const double usual = passes_.Usual(pass, stage_);
      sum += usual * passes_.InLane(pass, stage_, lane);
      weight += usual;
    }
    return weight == 0 ? 1 : sum / weight;
  }

  const Passes& passes_;
  const int stage_;
  const Lanes& lanes_;
  std::vector<double> slowness_;  // by lane
};

}  // namespace

SlowWorkers::SlowWorkers(const Passes& passes)
    : usual_spread_(passes.job().pp == 1 ? SpreadOfLanes(passes) : 0), slow_(static_cast<size_t>(passes.job().dp)) {
  for (int dp = 0; dp < passes.job().dp; ++dp)
    for (int stage = 0; stage < passes.job().pp; ++stage)
      slow_[static_cast<size_t>(dp)].push_back(Worker(passes, dp, stage).Find(usual_spread_));
}

}  // namespace lockstep::explain
