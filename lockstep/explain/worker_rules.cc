// A worker that is slow, in all steps or some; a stage that has too much to do. docs/models/explain.md has the rules.
#include <algorithm>
#include <array>
#include <functional>
#include <limits>

#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

constexpr double kSlower = 1.03;   // times what is usual: worth a look
constexpr double kAllSteps = 0.9;  // slow in more of the steps than this: always
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
  // spread: by which lanes vary by chance.
  Worker(const Passes& passes, int dp, int stage, double spread)
      : passes_(passes), dp_(dp), stage_(stage), spread_(spread), lanes_(passes.LanesOf(dp)) {
    slowness_.reserve(lanes_.size());
    for (const size_t lane : lanes_) slowness_.push_back(Slowness(lane));
  }

  // Slow in all steps, or in a run of them.
  std::optional<Remedy> Find() const {
    if (slowness_.empty()) return std::nullopt;
    const Lanes lanes = SlowLanes();
    const bool always = lanes.size() == lanes_.size();
    std::array<double, kPasses> ratios{};
    for (int pass = 0; pass < kPasses; ++pass) ratios[static_cast<size_t>(pass)] = Ratio(passes_, pass, stage_, lanes);
    const double slowest = *std::max_element(ratios.begin(), ratios.end());
    if (slowest < kSlower || (always && slowest < 1 + ByChance(spread_, lanes_.size()))) return std::nullopt;
    Remedy remedy;
    std::string evidence;
    for (int pass = 0; pass < kPasses && passes_.HasPass(pass); ++pass) {
      const double ratio = ratios[static_cast<size_t>(pass)];
      if (passes_.OfSegments())
        DivideEach(passes_, pass, stage_, lanes, remedy.durations);
      else
        Divide(passes_, pass, stage_, lanes, ratio, remedy.durations);
      evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", passes_.Name(pass), ratio);
    }
    CauseSuspect suspect = WorkerSuspect(passes_.job(), dp_, stage_);
    const std::vector<trace::JobLane>& all = passes_.job().lanes;
    if (!always) suspect.first_step = all[lanes.front()].step, suspect.last_step = all[lanes.back()].step;
    remedy.cause.kind = always ? CauseKind::kWorker : CauseKind::kTransientWorker;
    remedy.cause.suspects.push_back(suspect);
    remedy.cause.evidence = {evidence + " times what the other ranks of its stage take"};
    if (!always) remedy.cause.evidence.push_back(fmt::format("in {} of {} steps", lanes.size(), lanes_.size()));
    return remedy;
  }

 private:
  // All; or those of the run that costs most; or, where no run has half of it, wherever it is slow.
  Lanes SlowLanes() const {
    const double excess = std::max(TypicalExcess(), kSlower - 1);
    if (static_cast<double>(Above(1 + excess / 4).size()) > kAllSteps * static_cast<double>(lanes_.size()))
      return lanes_;
    const double half = 1 + excess / 2;
    const auto [first, last] = HighestRun(slowness_, half);
    double in_run = 0, in_all = 0;
    for (size_t i = 0; i < slowness_.size(); ++i) {
      if (slowness_[i] <= half) continue;
      in_all += slowness_[i] - 1;
      if (i >= first && i <= last) in_run += slowness_[i] - 1;
    }
    if (in_run < kMostly * in_all) return Above(half);
    return Above(1 + excess / 4, first, last);
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
  const int dp_, stage_;
  const double spread_;
  const Lanes& lanes_;
  std::vector<double> slowness_;  // by lane
};

}  // namespace

std::vector<Remedy> FindSlowWorkers(const Passes& passes) {
  std::vector<Remedy> found;
  // Of one stage a worker may have longer sequences by chance; of several, the others tell.
  const double spread = passes.job().pp == 1 ? SpreadOfLanes(passes) : 0;
  for (int dp = 0; dp < passes.job().dp; ++dp)
    for (int stage = 0; stage < passes.job().pp; ++stage)
      if (auto remedy = Worker(passes, dp, stage, spread).Find()) found.push_back(*std::move(remedy));
  return found;
}

std::vector<Remedy> FindSlowStages(const Passes& passes) {
  const int pp = passes.job().pp;
  const Lanes lanes = AllLanes(passes.job());
  std::vector<Remedy> found;
  for (int stage = 0; stage < pp && pp > 1; ++stage) {
    struct Load {
      double own = 0, others = 0;  // s: of this stage, and of all others
    };
    std::array<Load, kPasses> loads;
    Load both;
    for (int pass = 0; pass < kPasses; ++pass) {
      Load& load = loads[static_cast<size_t>(pass)];
      for (int each = 0; each < pp; ++each) (each == stage ? load.own : load.others) += passes.Usual(pass, each);
      both.own += load.own;
      both.others += load.others;
    }
    const double mean = both.others / (pp - 1);
    if (both.own < kSlower * mean) continue;
    Remedy remedy;
    std::string evidence;
    for (int pass = 0; pass < kPasses; ++pass) {
      const Load& load = loads[static_cast<size_t>(pass)];
      const double usual = load.others / (pp - 1), ratio = usual == 0 ? 1 : load.own / usual;
      Divide(passes, pass, stage, lanes, ratio, remedy.durations);
      const double balanced = (load.own + load.others) / pp;
      for (int each = 0; each < pp && usual > 0 && balanced > 0; ++each)
        for (const uint32_t op : passes.Ops(pass, each))
          remedy.balanced.emplace_back(op, balanced / (each == stage ? load.own : usual));
      evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", passes.Name(pass), ratio);
    }
    remedy.cause.kind = CauseKind::kStage;
    remedy.cause.suspects.push_back({{}, stage, {}, {}, {}});
    const double surplus = both.own - (both.own + both.others) / pp;
    remedy.cause.evidence = {
        evidence + " times the mean of the other stages, on all ranks",
        fmt::format("{:.0f} % of its layers moved to the others would balance it", 100 * surplus / both.own)};
    found.push_back(std::move(remedy));
  }
  return found;
}

}  // namespace lockstep::explain
