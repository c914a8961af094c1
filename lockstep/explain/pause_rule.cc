// Pauses of the host. docs/models/explain.md has the rule.
#include <algorithm>
#include <map>
#include <optional>

#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

constexpr double kSpread = 6;  // robust standard deviations: an outlier
// Times the median of the lane: a pause, if an outlier too. Segments vary more from step to step.
constexpr double kPause = 1.05, kPauseOfSegment = 1.2;
constexpr double kTail = 2;  // times as far as one in a hundred of them is faster than most
using DpAndStage = std::pair<int, int>;

// The same microbatch is long in three quarters of the other places, stages and passes: then it is the microbatch, no
// pause. In half of them several may have been paused, and just those hold a step up.
bool IsLongElsewhere(const Passes& passes, uint32_t op, size_t lane, double limit) {
  const trace::JobOp& one = passes.job().ops[op];
  int places = 0, long_ones = 0;
  for (int pass = 0; pass < kPasses; ++pass)
    for (int stage = 0; stage < passes.job().pp; ++stage) {
      if (pass == PassOf(one.type) && stage == one.stage) continue;
      const std::optional<uint32_t> same = passes.Same(op, pass, stage);
      if (!same || !passes.Has(*same, lane)) continue;
      ++places;
      if (passes.Relative(*same, lane) > limit * passes.InLane(pass, stage, lane)) ++long_ones;
    }
  return places > 0 && 4 * long_ones >= 3 * places;
}

// What a pass takes on a worker but for pauses, relative to what is usual: as much as most of the lane's. A segment,
// which may be long in its own way, as much as the others together, or as itself in most steps.
class Unpaused {
 public:
  Unpaused(const Passes& passes, int pass, int stage, int dp) : passes_(passes), pass_(pass), stage_(stage) {
    if (passes.OfSegments() && !passes.Ops(pass, stage).empty()) steady_ = &passes.Steady(stage, dp);
    steady_ != nullptr ? SumUp(passes.LanesOf(dp)) : FindMostlyPaused(passes.LanesOf(dp));
  }

  double At(uint32_t op, size_t lane) const {
    if (!passes_.OfSegments()) {
      const auto found = mostly_paused_.find(lane);
      return found != mostly_paused_.end() ? found->second : passes_.InLane(pass_, stage_, lane);
    }
    const double usual = of_lane_[lane].usual - passes_.Usual(op, lane);
    const double others = usual > 0 ? (of_lane_[lane].steady - steady_->Seconds(op, lane)) / usual : 1;
    return std::max(others, steady_->InMostSteps(op));
  }

 private:
  void SumUp(const Lanes& lanes) {
    of_lane_.resize(passes_.job().lanes.size());
    for (const uint32_t op : passes_.Ops(pass_, stage_))
      for (const size_t lane : lanes) {
        if (!passes_.Has(op, lane)) continue;
        of_lane_[lane].steady += steady_->Seconds(op, lane);
        of_lane_[lane].usual += passes_.Usual(op, lane);
      }
  }

  // Where half of a lane's passes are paused, their median is no measure. A quarter of them tells whether it is slow
  // itself, or is as ever but for the pauses.
  void FindMostlyPaused(const Lanes& lanes) {
    std::vector<double> medians;
    medians.reserve(lanes.size());
    for (const size_t lane : lanes) medians.push_back(passes_.InLane(pass_, stage_, lane));
    const double typical = Median(medians);
    for (const size_t lane : lanes) {
      const double own = passes_.InLane(pass_, stage_, lane);
      if (own > kPause * typical && LowerQuartile(lane) < (own + typical) / 2) mostly_paused_[lane] = typical;
    }
  }
  double LowerQuartile(size_t lane) const {
    std::vector<double> relative;
    for (const uint32_t op : passes_.Ops(pass_, stage_))
      if (passes_.Has(op, lane)) relative.push_back(passes_.Relative(op, lane));
    if (relative.empty()) return 1;
    const auto quarter = relative.begin() + static_cast<std::ptrdiff_t>((relative.size() - 1) / 4);
    std::nth_element(relative.begin(), quarter, relative.end());
    return *quarter;
  }

  struct Sums {
    double steady = 0, usual = 0;  // s: without pauses; what is usual
  };
  const Passes& passes_;
  const int pass_, stage_;
  std::map<size_t, double> mostly_paused_;  // by lane
  const SteadySegments* steady_ = nullptr;  // of segments
  std::vector<Sums> of_lane_;
};

struct Pause {
  uint32_t op;
  size_t lane;
  double usual;  // what the pass takes without it, s
};

// By how much passes may be longer by chance: the faster half of them tells, what lies far off among them too. Pauses
// make none faster.
double Chance(std::vector<double> relative) {
  if (relative.empty()) return 0;
  const double spread = SpreadBelow(relative, 1);
  const auto rare = relative.begin() + static_cast<std::ptrdiff_t>(relative.size() / 100);
  std::nth_element(relative.begin(), rare, relative.end());
  return std::max(kSpread * spread, kTail * (1 - *rare));
}

// In one pass of one worker.
std::vector<Pause> PausesOf(const Passes& passes, int pass, int stage, int dp) {
  const std::vector<uint32_t>& ops = passes.Ops(pass, stage);
  const Lanes& lanes = passes.LanesOf(dp);
  const Unpaused unpaused(passes, pass, stage, dp);
  std::vector<double> relative;  // to that
  const size_t count = ops.size() * lanes.size();
  for (size_t i = 0; i < count; i += StrideFor(count)) {
    const size_t lane = lanes[i % lanes.size()];
    const uint32_t op = ops[i / lanes.size()];
    if (passes.Has(op, lane) && unpaused.At(op, lane) > 0)
      relative.push_back(passes.Relative(op, lane) / unpaused.At(op, lane));
  }
  const double limit = passes.OfSegments() ? std::max(kPauseOfSegment, 1 + kSpread * RobustSpread(std::move(relative)))
                                           : std::max(kPause, 1 + Chance(std::move(relative)));
  std::vector<Pause> pauses;
  for (const uint32_t op : ops)
    for (const size_t lane : lanes) {
      if (!passes.Has(op, lane)) continue;
      const double own = passes.Relative(op, lane), without = unpaused.At(op, lane);
      if (own <= 0 || without <= 0) continue;  // it takes no time, or passes like it do not: nothing tells what is long
      // Half of its own excess, elsewhere, is not by chance.
      if (own < limit * without || IsLongElsewhere(passes, op, lane, (1 + own / without) / 2)) continue;
      pauses.push_back({op, lane, passes.Duration(op, lane) / own * without});
    }
  return pauses;
}

}  // namespace

std::vector<Remedy> FindPauses(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  std::vector<Remedy> found;
  for (int pass = 0; pass < kPasses; ++pass) {
    Remedy remedy;
    std::map<DpAndStage, size_t> by_worker;
    double longest = 0;
    for (int stage = 0; stage < job.pp; ++stage)
      for (int dp = 0; dp < job.dp; ++dp)
        for (const auto& [op, lane, usual] : PausesOf(passes, pass, stage, dp)) {
          Set(passes, op, lane, usual, remedy.durations);
          longest = std::max(longest, passes.Duration(op, lane) - usual);
          ++by_worker[{dp, stage}];
        }
    if (remedy.durations.empty()) continue;
    remedy.cause.kind = CauseKind::kGc;
    remedy.cause.suspects = MostPaused(job, by_worker);
    remedy.cause.evidence = {
        fmt::format("{} pauses of up to {:.3f} s in {} passes, on {} of {} workers", remedy.durations.size(), longest,
                    passes.Name(pass), by_worker.size(), job.dp * job.pp),
        "the same microbatches are not long in most other stages and passes"};
    found.push_back(std::move(remedy));
  }
  return found;
}

}  // namespace lockstep::explain
