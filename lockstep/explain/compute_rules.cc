// Causes in what stages compute: a worker, a stage, uneven sequences, pauses. docs/models/explain.md has the rules.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

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
double Ratio(const Passes& passes, int pass, int stage, const std::vector<size_t>& lanes) {
  std::vector<double> values;
  values.reserve(lanes.size());
  for (const size_t lane : lanes) values.push_back(passes.InLane(pass, stage, lane));
  return Median(std::move(values));
}

// Divides the durations of a stage's passes in some lanes.
void Divide(const Passes& passes, int pass, int stage, const std::vector<size_t>& lanes, double ratio, Remedy& remedy) {
  if (ratio <= 1) return;
  for (const uint32_t op : passes.Ops(pass, stage))
    for (const size_t lane : lanes)
      if (passes.Has(op, lane))
        remedy.durations.emplace_back(passes.Cell(op, lane), static_cast<float>(passes.Duration(op, lane) / ratio));
}

class Worker {
 public:
  Worker(const trace::StragglerJob& job, const Passes& passes, int dp, int stage)
      : job_(job), passes_(passes), dp_(dp), stage_(stage), lanes_(passes.LanesOf(dp)) {
    for (const size_t lane : lanes_) slowness_.push_back(Slowness(lane));
  }

  // Slow in all steps, or in a run of them.
  std::optional<Remedy> Find() const {
    if (slowness_.empty()) return std::nullopt;
    const auto [first, last] = HighestRun(slowness_, (1 + kSlower) / 2);
    const bool always = static_cast<double>(last - first + 1) > kAllSteps * static_cast<double>(lanes_.size());
    const std::vector<size_t> lanes = always ? lanes_
                                             : std::vector(lanes_.begin() + static_cast<std::ptrdiff_t>(first),
                                                           lanes_.begin() + static_cast<std::ptrdiff_t>(last) + 1);
    Remedy remedy;
    std::string evidence;
    double slowest = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      const double ratio = Ratio(passes_, pass, stage_, lanes);
      slowest = std::max(slowest, ratio);
      Divide(passes_, pass, stage_, lanes, ratio, remedy);
      evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", PassName(pass), ratio);
    }
    if (slowest < kSlower) return std::nullopt;
    CauseSuspect suspect{dp_, stage_, job_.ranks[static_cast<size_t>(dp_)][static_cast<size_t>(stage_)], {}, {}};
    if (!always) suspect.first_step = job_.lanes[lanes.front()].step, suspect.last_step = job_.lanes[lanes.back()].step;
    remedy.cause.kind = always ? CauseKind::kWorker : CauseKind::kTransientWorker;
    remedy.cause.suspects.push_back(suspect);
    remedy.cause.evidence = {evidence + " times what the other ranks of its stage take"};
    if (!always) remedy.cause.evidence.push_back(fmt::format("in {} of {} steps", lanes.size(), lanes_.size()));
    return remedy;
  }

 private:
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

  const trace::StragglerJob& job_;
  const Passes& passes_;
  const int dp_, stage_;
  const std::vector<size_t>& lanes_;
  std::vector<double> slowness_;  // by lane
};

std::vector<size_t> AllLanes(const trace::StragglerJob& job) {
  std::vector<size_t> lanes(job.lanes.size());
  std::iota(lanes.begin(), lanes.end(), size_t{0});
  return lanes;
}

// How long each microbatch of each lane is in a pass, relative to its worker's median: mean over stages.
using Lengths = std::map<std::pair<size_t, int>, double>;  // (lane, microbatch)

Lengths LengthsOf(const trace::StragglerJob& job, const Passes& passes, int pass, int only_stage) {
  std::map<std::pair<size_t, int>, std::vector<double>> seen;
  for (int stage = 0; stage < job.pp; ++stage) {
    if (only_stage >= 0 && stage != only_stage) continue;
    for (const uint32_t op : passes.Ops(pass, stage))
      for (size_t lane = 0; lane < job.lanes.size(); ++lane)
        if (passes.Has(op, lane)) seen[{lane, job.ops[op].microbatch}].push_back(passes.Relative(op, lane));
  }
  Lengths lengths;
  for (auto& [key, values] : seen) lengths[key] = Mean(values);
  return lengths;
}

// Of two measurements of the same microbatches.
double CorrelationOf(const Lengths& a, const Lengths& b) {
  std::vector<double> xs, ys;
  for (const auto& [key, x] : a)
    if (const auto y = b.find(key); y != b.end()) xs.push_back(x), ys.push_back(y->second);
  return Correlation(xs, ys);
}

// (median over workers of the variation of forward passes, median of their correlation with backward ones)
std::pair<double, double> WithinWorkers(const trace::StragglerJob& job, const std::vector<Lengths>& forward,
                                        const std::vector<Lengths>& backward) {
  std::vector<double> variations, correlations;
  for (size_t stage = 0; stage < forward.size(); ++stage)
    for (int dp = 0; dp < job.dp; ++dp) {
      std::vector<double> xs, ys;
      for (const auto& [key, x] : forward[stage]) {
        const auto y = backward[stage].find(key);
        if (job.lanes[key.first].dp == dp && y != backward[stage].end()) xs.push_back(x), ys.push_back(y->second);
      }
      if (xs.size() < 2) continue;
      variations.push_back(Variation(xs));
      correlations.push_back(Correlation(xs, ys));
    }
  return {Median(variations), Median(correlations)};
}

// The same microbatch is long in most other places, stages and passes: then it is the microbatch, no pause.
bool IsLongElsewhere(const trace::StragglerJob& job, const Passes& passes, uint32_t op, size_t lane, double limit) {
  const int own = job.ops[op].type == trace::OpType::kForwardCompute ? 0 : 1;
  int places = 0, long_ones = 0;
  for (int pass = 0; pass < kPasses; ++pass)
    for (int stage = 0; stage < job.pp; ++stage) {
      if (pass == own && stage == job.ops[op].stage) continue;
      const std::optional<uint32_t> same = passes.Same(op, pass, stage);
      if (!same || !passes.Has(*same, lane)) continue;
      ++places;
      if (passes.Relative(*same, lane) > limit * passes.InLane(pass, stage, lane)) ++long_ones;
    }
  return 2 * long_ones > places;
}

}  // namespace

std::vector<Remedy> FindSlowWorkers(const trace::StragglerJob& job, const Times& times) {
  const Passes passes(job, times);
  std::vector<Remedy> found;
  for (int dp = 0; dp < job.dp; ++dp)
    for (int stage = 0; stage < job.pp; ++stage)
      if (auto remedy = Worker(job, passes, dp, stage).Find()) found.push_back(*std::move(remedy));
  return found;
}

std::vector<Remedy> FindSlowStages(const trace::StragglerJob& job, const Times& times) {
  const Passes passes(job, times);
  std::vector<Remedy> found;
  for (int stage = 0; stage < job.pp && job.pp > 1; ++stage) {
    Remedy remedy;
    double own = 0, others = 0;
    std::string evidence;
    for (int pass = 0; pass < kPasses; ++pass) {
      double sum = 0;
      for (int other = 0; other < job.pp; ++other) sum += other == stage ? 0 : passes.Usual(pass, other);
      const double usual = passes.Usual(pass, stage), mean = sum / (job.pp - 1);
      own += usual;
      others += mean;
      Divide(passes, pass, stage, AllLanes(job), mean == 0 ? 1 : usual / mean, remedy);
      evidence += fmt::format("{}{} {:.2f}", pass == 0 ? "" : " and ", PassName(pass), mean == 0 ? 1 : usual / mean);
    }
    if (own < kSlower * others) continue;
    remedy.cause.kind = CauseKind::kStage;
    remedy.cause.suspects.push_back({{}, stage, {}, {}, {}});
    const double balanced = (own + (job.pp - 1) * others) / job.pp;
    remedy.cause.evidence = {
        evidence + " times the mean of the other stages, on all ranks",
        fmt::format("{:.0f} % of its layers moved to the others would balance it", 100 * (own - balanced) / own)};
    found.push_back(std::move(remedy));
  }
  return found;
}

std::vector<Remedy> FindSequenceLengths(const trace::StragglerJob& job, const Times& times) {
  const Passes passes(job, times);
  std::vector<Lengths> by_stage[kPasses];
  for (int pass = 0; pass < kPasses; ++pass)
    for (int stage = 0; stage < job.pp; ++stage) by_stage[pass].push_back(LengthsOf(job, passes, pass, stage));
  const auto [variation, correlation] = WithinWorkers(job, by_stage[0], by_stage[1]);
  std::vector<double> across;
  for (size_t stage = 1; stage < by_stage[0].size(); ++stage)
    across.push_back(CorrelationOf(by_stage[0][stage - 1], by_stage[0][stage]));
  if (variation < kUnevenLengths || correlation < kSameLength || (!across.empty() && Median(across) < kSameLength))
    return {};
  Remedy remedy;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Lengths lengths = LengthsOf(job, passes, pass, -1);
    std::map<int64_t, std::vector<double>> by_step;
    for (const auto& [key, length] : lengths) by_step[job.lanes[key.first].step].push_back(length);
    std::map<int64_t, double> means;
    for (const auto& [step, values] : by_step) means[step] = Mean(values);
    for (int stage = 0; stage < job.pp; ++stage)
      for (const uint32_t op : passes.Ops(pass, stage))
        for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
          if (!passes.Has(op, lane)) continue;
          const double length = lengths.at({lane, job.ops[op].microbatch}), mean = means.at(job.lanes[lane].step);
          if (length > 0)
            remedy.durations.emplace_back(passes.Cell(op, lane),
                                          static_cast<float>(passes.Duration(op, lane) * mean / length));
        }
  }
  remedy.cause.kind = CauseKind::kSequenceLength;
  remedy.cause.evidence = {
      fmt::format("forward and backward of a microbatch vary together (correlation {:.2f} within workers)",
                  correlation),
      fmt::format("by {:.0f} % (standard deviation of forward)", 100 * variation)};
  if (!across.empty())
    remedy.cause.evidence.push_back(fmt::format("and alike on all stages (correlation {:.2f})", Median(across)));
  return {std::move(remedy)};
}

std::vector<Remedy> FindPauses(const trace::StragglerJob& job, const Times& times) {
  const Passes passes(job, times);
  std::vector<Remedy> found;
  for (int pass = 0; pass < kPasses; ++pass) {
    Remedy remedy;
    std::map<DpAndStage, int> by_worker;
    double longest = 0;
    for (int stage = 0; stage < job.pp; ++stage)
      for (int dp = 0; dp < job.dp; ++dp) {
        std::vector<double> relative;
        for (const size_t lane : passes.LanesOf(dp))
          for (const uint32_t op : passes.Ops(pass, stage))
            if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane) / passes.InLane(pass, stage, lane));
        const double limit = std::max(kPause, 1 + kSpread * RobustSpread(relative));
        for (const size_t lane : passes.LanesOf(dp))
          for (const uint32_t op : passes.Ops(pass, stage)) {
            if (!passes.Has(op, lane) || passes.Relative(op, lane) < limit * passes.InLane(pass, stage, lane)) continue;
            if (IsLongElsewhere(job, passes, op, lane, (1 + limit) / 2)) continue;
            const double usual =
                passes.Duration(op, lane) / passes.Relative(op, lane) * passes.InLane(pass, stage, lane);
            remedy.durations.emplace_back(passes.Cell(op, lane), static_cast<float>(usual));
            longest = std::max(longest, passes.Duration(op, lane) - usual);
            ++by_worker[{dp, stage}];
          }
      }
    if (remedy.durations.empty()) continue;
    std::vector<std::pair<int, DpAndStage>> order;
    order.reserve(by_worker.size());
    for (const auto& [worker, count] : by_worker) order.emplace_back(-count, worker);
    std::sort(order.begin(), order.end());
    for (size_t i = 0; i < std::min(order.size(), kMostNamed); ++i) {
      const auto [dp, stage] = order[i].second;
      remedy.cause.suspects.push_back(
          {dp, stage, job.ranks[static_cast<size_t>(dp)][static_cast<size_t>(stage)], {}, {}});
    }
    remedy.cause.kind = CauseKind::kGc;
    remedy.cause.evidence = {
        fmt::format("{} pauses of up to {:.3f} s in {} passes, on {} of {} workers", remedy.durations.size(), longest,
                    PassName(pass), by_worker.size(), job.dp * job.pp),
        "each in one pass of one worker alone"};
    found.push_back(std::move(remedy));
  }
  return found;
}

}  // namespace lockstep::explain
