// Causes in what stages compute: a worker, a stage, uneven sequences, pauses. docs/models/explain.md has the rules.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "lockstep/base/lower_median.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/passes.h"
#include "lockstep/explain/remedy.h"
#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

constexpr double kSlower = 1.03;         // times what is usual: worth a look
constexpr double kAllSteps = 0.9;        // a run that covers more of the steps than this is no run
constexpr double kSameLength = 0.9;      // correlation from which forward and backward vary together
constexpr double kUnevenLengths = 0.05;  // variation of a worker's forward passes
constexpr double kSpread = 6;            // robust standard deviations: an outlier
constexpr double kPause = 1.2;           // times the median of the lane: a pause, if an outlier too
constexpr size_t kMostNamed = 8;
using DpAndStage = std::pair<int, int>;
using Lanes = std::vector<size_t>;

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

// The median over lanes of how a worker does in a pass.
double Ratio(const Passes& passes, int pass, int stage, const Lanes& lanes) {
  std::vector<double> values;
  values.reserve(lanes.size());
  for (const size_t lane : lanes) values.push_back(passes.InLane(pass, stage, lane));
  return Median(std::move(values));
}

void Set(const Passes& passes, uint32_t op, size_t lane, double seconds, CellTimes& times) {
  times.emplace_back(static_cast<uint32_t>(passes.job().graph.Cell(op, lane)), static_cast<float>(seconds));
}

void Divide(const Passes& passes, uint32_t op, const Lanes& lanes, double ratio, CellTimes& times) {
  for (const size_t lane : lanes)
    if (passes.Has(op, lane)) Set(passes, op, lane, passes.Duration(op, lane) / ratio, times);
}

// The durations of a stage's passes in some lanes.
void Divide(const Passes& passes, int pass, int stage, const Lanes& lanes, double ratio, CellTimes& times) {
  if (ratio <= 1) return;
  times.reserve(times.size() + passes.Ops(pass, stage).size() * lanes.size());
  for (const uint32_t op : passes.Ops(pass, stage)) Divide(passes, op, lanes, ratio, times);
}

// What an op takes of what is usual, in most of the lanes; 0: it is in none.
double Ratio(const Passes& passes, uint32_t op, const Lanes& lanes) {
  std::vector<double> relative;
  for (const size_t lane : lanes)
    if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane));
  return Median(std::move(relative));
}

// Segments are long in their own ways: each is divided by its own ratio.
void DivideEach(const Passes& passes, int pass, int stage, const Lanes& lanes, CellTimes& times) {
  for (const uint32_t op : passes.Ops(pass, stage))
    if (const double ratio = Ratio(passes, op, lanes); ratio > 0) Divide(passes, op, lanes, ratio, times);
}

CauseSuspect WorkerSuspect(const trace::TracedJob& job, int dp, int stage) {
  return {dp, stage, job.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)], {}, {}};
}

class Worker {
 public:
  Worker(const Passes& passes, int dp, int stage)
      : passes_(passes), dp_(dp), stage_(stage), lanes_(passes.LanesOf(dp)) {
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
    if (*std::max_element(ratios.begin(), ratios.end()) < kSlower) return std::nullopt;
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
  // All, or those of a run.
  Lanes SlowLanes() const {
    auto run = HighestRun(slowness_, (1 + kSlower) / 2);
    if (static_cast<double>(run.second - run.first + 1) > kAllSteps * static_cast<double>(lanes_.size())) return lanes_;
    const auto part = [&run](const auto& values) {
      return std::vector(values.begin() + static_cast<std::ptrdiff_t>(run.first),
                         values.begin() + static_cast<std::ptrdiff_t>(run.second) + 1);
    };
    // Its ends lie where the slowness is half of what it is within.
    run = HighestRun(slowness_, (1 + std::max(Median(part(slowness_)), kSlower)) / 2);
    return part(lanes_);
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
  const Lanes& lanes_;
  std::vector<double> slowness_;  // by lane
};

Lanes AllLanes(const trace::TracedJob& job) {
  Lanes lanes(job.lanes.size());
  std::iota(lanes.begin(), lanes.end(), size_t{0});
  return lanes;
}

// How long each microbatch of each lane is, relative to what is usual; NaN: not there. Of segments, all are of one
// microbatch.
class Lengths {
 public:
  Lengths(size_t lanes, size_t microbatches)
      : lanes_(lanes), microbatches_(static_cast<int>(microbatches)), values_(lanes * microbatches) {}

  double At(size_t lane, int microbatch) const { return values_[static_cast<size_t>(microbatch) * lanes_ + lane]; }
  double& At(size_t lane, int microbatch) { return values_[static_cast<size_t>(microbatch) * lanes_ + lane]; }
  int microbatches() const { return microbatches_; }

 private:
  size_t lanes_;
  int microbatches_;
  std::vector<double> values_;
};

// The same of one pass on one stage, of every op or of every second one: mean over model chunks. Found where it is
// asked for: of jobs with millions of ops, mostly a thousand are.
enum class Which : uint8_t { kAll, kEven, kOdd };
class LengthsOn {
 public:
  LengthsOn(const Passes& passes, int pass, int stage, Which which = Which::kAll)
      : passes_(passes), ops_(passes.microbatches()) {
    for (const uint32_t op : passes.Ops(pass, stage)) {
      const trace::JobOp& one = passes.job().ops[op];
      if (which == Which::kAll || (one.sequence % 2 == 0) == (which == Which::kEven))
        ops_[static_cast<size_t>(one.microbatch)].push_back(op);
    }
  }

  double At(size_t lane, int microbatch) const {
    double sum = 0;
    int count = 0;
    for (const uint32_t op : ops_[static_cast<size_t>(microbatch)])
      if (passes_.Has(op, lane)) sum += passes_.Relative(op, lane), ++count;
    return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
  }
  int microbatches() const { return static_cast<int>(ops_.size()); }

 private:
  const Passes& passes_;
  std::vector<std::vector<uint32_t>> ops_;  // by microbatch
};

// What passes and stages agree on, each against its own median in the lane: neither a pause nor a slow worker is a
// length.
Lengths SharedLengths(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  std::vector<std::tuple<int, int, LengthsOn>> places;  // pass, stage
  for (int pass = 0; pass < kPasses && passes.HasPass(pass); ++pass)
    for (int stage = 0; stage < job.pp; ++stage) places.emplace_back(pass, stage, LengthsOn(passes, pass, stage));
  Lengths shared(job.lanes.size(), passes.microbatches());
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
    std::vector<double> in_lane;
    in_lane.reserve(places.size());
    for (const auto& [pass, stage, lengths] : places) in_lane.push_back(passes.InLane(pass, stage, lane));
    const double of_lane = LowerMedian(in_lane);
    for (int i = 0; i < shared.microbatches(); ++i) {
      std::vector<double> votes;
      for (size_t place = 0; place < places.size(); ++place)
        if (const double length = std::get<2>(places[place]).At(lane, i); !std::isnan(length) && in_lane[place] > 0)
          votes.push_back(length / in_lane[place]);
      shared.At(lane, i) =
          votes.empty() ? std::numeric_limits<double>::quiet_NaN() : of_lane * Median(std::move(votes));
    }
  }
  return shared;
}

// Two measurements of the same microbatches; of very many, of some.
struct Pairs {
  std::vector<double> a, b;
};

Pairs PairsOf(const LengthsOn& a, const LengthsOn& b, const Lanes& lanes) {
  Pairs pairs;
  const size_t count = lanes.size() * static_cast<size_t>(a.microbatches());
  for (size_t i = 0; i < count; i += StrideFor(count)) {
    const size_t lane = lanes[i % lanes.size()];
    const int microbatch = static_cast<int>(i / lanes.size());
    const double first = a.At(lane, microbatch), second = b.At(lane, microbatch);
    if (std::isnan(first) || std::isnan(second)) continue;
    pairs.a.push_back(first);
    pairs.b.push_back(second);
  }
  return pairs;
}

// Mean length of the microbatches of each lane set.
std::vector<double> MeansBySet(const trace::TracedJob& job, const Lengths& lengths) {
  std::vector<double> means;
  means.reserve(job.steps.size());
  for (size_t set = 0; set < job.steps.size(); ++set) {
    std::vector<double> there;
    for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane)
      for (int i = 0; i < lengths.microbatches(); ++i)
        if (const double length = lengths.At(lane, i); !std::isnan(length)) there.push_back(length);
    means.push_back(Mean(there));
  }
  return means;
}

// Of segments: what most of a lane's take, relative to what is usual.
Lengths SegmentLengths(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  Lengths lengths(job.lanes.size(), passes.microbatches());
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
    std::vector<double> relative;
    for (const uint32_t op : passes.Ops(0, 0))
      if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane));
    lengths.At(lane, 0) = relative.empty() ? std::numeric_limits<double>::quiet_NaN() : Median(std::move(relative));
  }
  return lengths;
}

// An optimizer's segment does not depend on lengths.
bool Follows(const Passes& passes, uint32_t op, const Lengths& lengths) {
  std::vector<double> own, all;
  for (size_t lane = 0; lane < passes.job().lanes.size(); ++lane) {
    if (!passes.Has(op, lane)) continue;
    own.push_back(passes.Relative(op, lane));
    all.push_back(lengths.At(lane, 0));
  }
  return RankCorrelation(own, all) >= kSameLength;
}

// Every microbatch of a step as long as their mean.
Remedy EvenLengths(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  const bool segments = !passes.HasPass(1);
  const Lengths lengths = segments ? SegmentLengths(passes) : SharedLengths(passes);
  const std::vector<double> means = MeansBySet(job, lengths);
  Remedy remedy;
  for (int pass = 0; pass < kPasses; ++pass)
    for (int stage = 0; stage < job.pp; ++stage)
      for (const uint32_t op : passes.Ops(pass, stage)) {
        if (segments && !Follows(passes, op, lengths)) continue;
        for (size_t set = 0; set < job.steps.size(); ++set)
          for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
            const double length = lengths.At(lane, job.ops[op].microbatch);
            if (passes.Has(op, lane) && length > 0)
              Set(passes, op, lane, passes.Duration(op, lane) * means[set] / length, remedy.durations);
          }
      }
  return remedy;
}

// The same microbatch is long in most other places, stages and passes: then it is the microbatch, no pause.
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
  return 2 * long_ones > places;
}

// What a pass takes on a worker but for pauses, relative to what is usual: as much as the lane's others. A segment,
// which may be long in its own way, as much as the others together, or as itself in most steps.
class Unpaused {
 public:
  Unpaused(const Passes& passes, int pass, int stage, int dp) : passes_(passes), pass_(pass), stage_(stage) {
    if (!passes.OfSegments()) return;
    of_lane_.resize(passes.job().lanes.size());
    for (const uint32_t op : passes.Ops(pass, stage)) {
      of_op_[op] = Ratio(passes, op, passes.LanesOf(dp));
      for (const size_t lane : passes.LanesOf(dp)) {
        if (!passes.Has(op, lane)) continue;
        of_lane_[lane].duration += passes.Duration(op, lane);
        of_lane_[lane].usual += passes.Usual(op);
      }
    }
  }

  double At(uint32_t op, size_t lane) const {
    if (!passes_.OfSegments()) return passes_.InLane(pass_, stage_, lane);
    const double usual = of_lane_[lane].usual - passes_.Usual(op);
    const double others = usual > 0 ? (of_lane_[lane].duration - passes_.Duration(op, lane)) / usual : 1;
    return std::max(others, of_op_.at(op));
  }

 private:
  struct Sums {
    double duration = 0, usual = 0;
  };
  const Passes& passes_;
  const int pass_, stage_;
  std::vector<Sums> of_lane_;
  std::map<uint32_t, double> of_op_;
};

struct Pause {
  uint32_t op;
  size_t lane;
  double usual;  // what the pass takes without it, s
};

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
    if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane) / unpaused.At(op, lane));
  }
  const double limit = std::max(kPause, 1 + kSpread * RobustSpread(std::move(relative)));
  std::vector<Pause> pauses;
  for (const uint32_t op : ops)
    for (const size_t lane : lanes) {
      if (!passes.Has(op, lane)) continue;
      const double own = passes.Relative(op, lane), without = unpaused.At(op, lane);
      if (own < limit * without || IsLongElsewhere(passes, op, lane, (1 + limit) / 2)) continue;
      pauses.push_back({op, lane, passes.Duration(op, lane) / own * without});
    }
  return pauses;
}

// The workers with most pauses.
std::vector<CauseSuspect> MostPaused(const trace::TracedJob& job, const std::map<DpAndStage, size_t>& pauses) {
  std::vector<std::pair<size_t, DpAndStage>> order;
  order.reserve(pauses.size());
  for (const auto& [worker, count] : pauses) order.emplace_back(count, worker);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<CauseSuspect> suspects;
  for (size_t i = 0; i < std::min(order.size(), kMostNamed); ++i)
    suspects.push_back(WorkerSuspect(job, order[i].second.first, order[i].second.second));
  return suspects;
}

}  // namespace

std::vector<Remedy> FindSlowWorkers(const Passes& passes) {
  std::vector<Remedy> found;
  for (int dp = 0; dp < passes.job().dp; ++dp)
    for (int stage = 0; stage < passes.job().pp; ++stage)
      if (auto remedy = Worker(passes, dp, stage).Find()) found.push_back(*std::move(remedy));
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

std::vector<Remedy> FindSequenceLengths(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  // Without backward passes to compare with, one half of the segments with the other.
  const bool halves = !passes.HasPass(1);
  std::vector<LengthsOn> forward;  // by stage
  std::vector<Pairs> in_workers;   // forward and backward
  std::vector<double> variations, correlations, across;
  for (int stage = 0; stage < job.pp; ++stage) {
    forward.emplace_back(passes, 0, stage, halves ? Which::kEven : Which::kAll);
    const LengthsOn backward(passes, halves ? 0 : 1, stage, halves ? Which::kOdd : Which::kAll);
    for (int dp = 0; dp < job.dp; ++dp) {
      Pairs pairs = PairsOf(forward.back(), backward, passes.LanesOf(dp));
      if (pairs.a.size() < 2) continue;
      variations.push_back(Variation(pairs.a));
      in_workers.push_back(std::move(pairs));
    }
  }
  const double variation = Median(variations);
  if (variation < kUnevenLengths) return {};
  for (const Pairs& pairs : in_workers) correlations.push_back(RankCorrelation(pairs.a, pairs.b));
  for (size_t stage = 1; stage < forward.size(); ++stage) {
    const Pairs pairs = PairsOf(forward[stage - 1], forward[stage], AllLanes(job));
    across.push_back(RankCorrelation(pairs.a, pairs.b));
  }
  const double correlation = Median(correlations);
  if (correlation < kSameLength || (!across.empty() && Median(across) < kSameLength)) return {};
  Remedy remedy = EvenLengths(passes);
  remedy.cause.kind = CauseKind::kSequenceLength;
  remedy.cause.evidence = {
      fmt::format("{} vary together (correlation {:.2f} within workers)",
                  halves ? "all segments of a step" : "forward and backward of a microbatch", correlation),
      fmt::format("by {:.0f} % (robust standard deviation{})", 100 * variation, halves ? "" : " of forward")};
  if (!across.empty())
    remedy.cause.evidence.push_back(fmt::format("and alike on all stages (correlation {:.2f})", Median(across)));
  return {std::move(remedy)};
}

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
        "each in one pass of one worker alone"};
    found.push_back(std::move(remedy));
  }
  return found;
}

}  // namespace lockstep::explain
