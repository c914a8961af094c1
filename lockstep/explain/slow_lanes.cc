#include "lockstep/explain/slow_lanes.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "lockstep/base/select.h"
#include "lockstep/explain/sample.h"
#include "lockstep/trace/untold_transfers.h"

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

// Of both passes, by the time that they take.
double Slowness(const Passes& passes, int stage, size_t lane) {
  double sum = 0, weight = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const double usual = passes.Usual(pass, stage);
    sum += usual * passes.InLane(pass, stage, lane);
    weight += usual;
  }
  return weight == 0 ? 1 : sum / weight;
}

bool Computes(const Passes& passes, int stage, size_t lane) {
  for (int pass = 0; pass < kPasses; ++pass)
    for (const uint32_t op : passes.Ops(pass, stage))
      if (passes.Has(op, lane)) return true;
  return false;
}

// [lane]: its step may have more of a pace because some workers were held up, for the quicker ones have not half of it.
// If all take as much longer it is the job that does. Of two workers nobody can tell.
std::vector<bool> FindHeldUp(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  std::vector<bool> held_up(job.lanes.size(), true);
  if (job.dp * job.pp <= 2) return held_up;
  const std::vector<uint32_t>& first = job.graph.first_lane;
  std::vector<double> quicker;  // by step: a quarter of the workers take less
  for (size_t set = 0; set < job.steps.size(); ++set) {
    std::vector<double> own;
    for (size_t lane = first[set]; lane < first[set + 1]; ++lane)
      for (int stage = 0; stage < job.pp; ++stage) own.push_back(Slowness(passes, stage, lane) * passes.Pace(lane));
    if (!own.empty()) SelectNth(own, (own.size() - 1) / 4);
    quicker.push_back(own.empty() ? 1 : own[(own.size() - 1) / 4]);
  }
  const double usual = Median(quicker);
  for (size_t set = 0; set < job.steps.size(); ++set)
    for (size_t lane = first[set]; lane < first[set + 1]; ++lane)
      held_up[lane] = quicker[set] < usual * (1 + passes.Pace(lane)) / 2;
  return held_up;
}

class Worker {
 public:
  // held_up: by lane.
  Worker(const Passes& passes, int dp, int stage, const std::vector<bool>& held_up)
      : passes_(passes), held_up_(held_up), stage_(stage) {
    for (const size_t lane : passes.LanesOf(dp))
      if (Computes(passes, stage, lane)) lanes_.push_back(lane);
    slowness_.reserve(lanes_.size());
    for (const size_t lane : lanes_) slowness_.push_back(Slowness(passes, stage, lane));
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

  // In all steps but a few of those that tell.
  bool IsAlways(double excess) const {
    const auto all = static_cast<double>(lanes_.size());
    Lanes slow, maybe_silent;  // places in lanes_
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (slowness_[i] > 1 + excess / 4)
        slow.push_back(i);
      else if (Own(i) > 1 + excess / 2 && held_up_[lanes_[i]])
        maybe_silent.push_back(i);
    }
    const auto slow_in = static_cast<double>(slow.size());
    if (slow_in > kAllSteps * all) return true;
    if (slow_in <= kAllSteps * (all - kSilent * all)) return false;
    const double silent = SilentOf(maybe_silent, slow);
    return silent <= kSilent * all && slow_in > kAllSteps * (all - silent);
  }

  // On a busy machine the others may be held up in a step: then a worker that takes as long as ever looks like them,
  // and that step does not tell. If what it takes changes with the pace of the steps, that is the pace of the job.
  double SilentOf(const Lanes& maybe, const Lanes& slow) const {
    constexpr double kNoise = 0.03;
    std::vector<double> own, beside_others;  // in logarithms, where it is slow
    for (const size_t i : slow) own.push_back(std::log(Own(i))), beside_others.push_back(std::log(slowness_[i]));
    const double spread = Deviation(own);
    if (spread > 2 * Deviation(beside_others) + kNoise / 2) return 0;
    const double as_ever = Median(own);
    return static_cast<double>(std::ranges::count_if(
        maybe, [&](size_t i) { return std::abs(std::log(Own(i)) - as_ever) <= std::max(kNoise, 3 * spread); }));
  }

  // Beside what is usual, whatever the pace of the step.
  double Own(size_t i) const { return slowness_[i] * passes_.Pace(lanes_[i]); }

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

  const Passes& passes_;
  const std::vector<bool>& held_up_;
  const int stage_;
  Lanes lanes_;                   // in which it computes: others, of which rows were lost, tell nothing of it
  std::vector<double> slowness_;  // by lane
};

// Of segments that are taken for alike and are not, all ranks of a stage would take longer than what is usual of them,
// which no more than half can: then those are slow that take longer than the others.
void LeaveOutAllOfAStage(std::vector<std::vector<std::optional<SlowLanes>>>& slow, size_t stage) {
  std::vector<double> slowest;
  for (const auto& of_dp : slow)
    slowest.push_back(of_dp[stage] && of_dp[stage]->always ? std::ranges::max(of_dp[stage]->ratios) : 1);
  const double usual = LowerMedian(slowest);
  for (size_t dp = 0; dp < slow.size(); ++dp)
    if (slowest[dp] > 1 && slowest[dp] < kSlower * usual) slow[dp][stage].reset();
}

}  // namespace

SlowWorkers::SlowWorkers(const Passes& passes)
    : usual_spread_(passes.job().pp == 1 ? SpreadOfLanes(passes) : 0), slow_(static_cast<size_t>(passes.job().dp)) {
  const std::vector<bool> held_up = FindHeldUp(passes);
  for (int dp = 0; dp < passes.job().dp; ++dp)
    for (int stage = 0; stage < passes.job().pp; ++stage)
      slow_[static_cast<size_t>(dp)].push_back(
          MayBeStage(passes.job(), dp) ? std::nullopt : Worker(passes, dp, stage, held_up).Find(usual_spread_));
  for (int stage = 0; stage < passes.job().pp && passes.OfSegments(); ++stage)
    LeaveOutAllOfAStage(slow_, static_cast<size_t>(stage));
}

}  // namespace lockstep::explain
