// Microbatches of uneven length. docs/models/explain.md has the rule.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/median.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/others.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"
#include "lockstep/explain/slow_lanes.h"

namespace lockstep::explain {
namespace {

constexpr double kSameLength = 0.9;      // correlation from which forward and backward vary together
constexpr double kUnevenLengths = 0.02;  // variation of a worker's forward passes
constexpr double kTellsPower = 0.05;     // variation from which noise does not flatten the power of the length

// How long each microbatch of each lane is, relative to what is usual; NaN: not there. With one stage, all segments are
// of one microbatch. Where a worker is slow, passes take `slower` times as long as the microbatch is.
class Lengths {
 public:
  Lengths(size_t lanes, size_t microbatches)
      : lanes_(lanes),
        microbatches_(static_cast<int>(microbatches)),
        values_(lanes * microbatches),
        slower_(lanes, 1) {}

  double At(size_t lane, int microbatch) const { return values_[static_cast<size_t>(microbatch) * lanes_ + lane]; }
  double& At(size_t lane, int microbatch) { return values_[static_cast<size_t>(microbatch) * lanes_ + lane]; }
  int microbatches() const { return microbatches_; }
  double Slower(size_t lane) const { return slower_[lane]; }
  double& Slower(size_t lane) { return slower_[lane]; }

 private:
  size_t lanes_;
  int microbatches_;
  std::vector<double> values_, slower_;
};

// The same of one pass on one stage, of every op or of every second one: mean over model chunks. Found where it is
// asked for: of jobs with millions of ops, mostly a thousand are.
enum class Which : uint8_t { kAll, kEven, kOdd };
class LengthsOn {
 public:
  LengthsOn(const Passes& passes, int pass, int stage, Which which = Which::kAll)
      : passes_(passes), pass_(pass), stage_(stage), ops_(passes.microbatches()) {
    for (const uint32_t op : passes.Ops(pass, stage)) {
      const trace::JobOp& one = passes.job().ops[op];
      if (one.microbatch < 0) continue;
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
  double InLane(size_t lane) const { return passes_.InLane(pass_, stage_, lane); }
  int microbatches() const { return static_cast<int>(ops_.size()); }

 private:
  const Passes& passes_;
  const int pass_, stage_;
  std::vector<std::vector<uint32_t>> ops_;  // by microbatch
};

// In logarithms, for a few lengths are many times as long as most; with the pace of their steps, which follows lengths,
// and of few ranks takes away most of what they vary by. By lane.
std::vector<double> LengthsOfLanes(const Passes& passes) {
  std::vector<double> lengths;
  for (size_t lane = 0; lane < passes.job().lanes.size(); ++lane) {
    const double length = passes.InLane(0, 0, lane) * passes.Pace(lane);
    lengths.push_back(length > 0 ? std::log(length) : std::numeric_limits<double>::quiet_NaN());
  }
  return lengths;
}

// Of a few lanes in a row the deviation of all tells little: a few lengths may be many times as long as most. But as
// they grow longer they become rarer at least as fast as the others of the upper quarter do: exponentially, in
// logarithms.
double LongestInTail(const Others::Summary& others, size_t lanes) {
  constexpr size_t kFew = 8;
  constexpr double kSurely = 3.5;  // 3 % of jobs have one that is longer: exp(-kSurely)
  if (lanes > kFew || others.count == 0) return 0;
  return others.upper +
         others.tail * (kSurely + std::log(static_cast<double>(others.count))) / static_cast<double>(lanes);
}

// How long microbatches of a worker's lanes may be by chance. All of them: by how its steps vary, and those of most
// workers. Some: by how all other lanes of the job do, by those too that lie far off, for these are the ones that lie
// furthest off; what stands out here and there, each for itself.
double LongestByChance(const Passes& passes, int dp, const SlowLanes& slow, double usual_spread, const Others& others) {
  if (slow.always) return 1 + ByChance(std::max(usual_spread, SpreadOfLanes(passes, dp)), slow.lanes.size());
  constexpr double kSurely = 4.5;  // standard deviations of the mean of a run: any of them may be the longest
  const Others::Summary of_others = others.Without(slow.lanes);
  const size_t lanes = slow.in_a_row ? slow.lanes.size() : 1;
  const double by_chance = slow.in_a_row ? kSurely * of_others.deviation / std::sqrt(static_cast<double>(lanes))
                                         : ByChance(of_others.deviation, 1);
  return std::exp(std::max(std::max(0.0, of_others.median) + by_chance, LongestInTail(of_others, lanes)));
}

// How long they are there: most of them, and of a run, which a few that are very long are not, their mean too.
double LongInAll(std::vector<double> lengths, const SlowLanes& slow) {
  std::vector<double> logs;
  for (const double length : lengths)
    if (length > 0) logs.push_back(std::log(length));
  const double most = Median(std::move(lengths));
  return slow.always || !slow.in_a_row || logs.empty() ? most : std::min(most, std::exp(Mean(logs)));
}

// With one stage a worker that is slow looks like one whose microbatches are longer; but that much longer, in all steps
// or a run of them, they are not by chance.
void LeaveOutWorkers(const Passes& passes, const SlowWorkers& workers, Lengths& lengths) {
  const Others others(LengthsOfLanes(passes));
  for (int dp = 0; dp < passes.job().dp; ++dp) {
    const std::optional<SlowLanes>& slow = workers.Of(dp, 0);
    if (!slow) continue;
    std::vector<double> there;
    for (const size_t lane : slow->lanes)
      for (int i = 0; i < lengths.microbatches(); ++i)
        if (const double length = lengths.At(lane, i); !std::isnan(length)) there.push_back(length);
    const double slower = Median(there);
    if (LongInAll(std::move(there), *slow) <= LongestByChance(passes, dp, *slow, workers.usual_spread(), others))
      continue;
    for (const size_t lane : slow->lanes) {
      lengths.Slower(lane) = slower;
      for (int i = 0; i < lengths.microbatches(); ++i) lengths.At(lane, i) /= slower;
    }
  }
}

// What passes and stages agree on, each against its own median in the lane: neither a pause nor a slow worker is a
// length.
Lengths SharedLengths(const Passes& passes, const SlowWorkers& workers) {
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
          votes.empty() ? std::numeric_limits<double>::quiet_NaN() : of_lane * LowerMedian(std::move(votes));
    }
  }
  if (job.pp == 1) LeaveOutWorkers(passes, workers, shared);
  return shared;
}

// Two measurements of the same microbatches; of very many, of some. With the pace of their steps, which varies with
// lengths, too; but lengths that vary with it alone are no matter.
struct Pairs {
  std::vector<double> a, b;
  std::vector<double> beside_pace;  // a, at a pace of 1
  std::vector<double> beside_lane;  // a, of what its lane takes; of one microbatch a step, of what is usual
};

Pairs PairsOf(const Passes& passes, const LengthsOn& a, const LengthsOn& b, const Lanes& lanes) {
  Pairs pairs;
  const size_t count = lanes.size() * static_cast<size_t>(a.microbatches());
  for (size_t i = 0; i < count; i += StrideFor(count)) {
    const size_t lane = lanes[i % lanes.size()];
    const int microbatch = static_cast<int>(i / lanes.size());
    const double first = a.At(lane, microbatch), second = b.At(lane, microbatch);
    if (std::isnan(first) || std::isnan(second)) continue;
    pairs.a.push_back(first * passes.Pace(lane));
    pairs.b.push_back(second * passes.Pace(lane));
    pairs.beside_pace.push_back(first);
    const double of_lane = a.microbatches() == 1 ? 1 : a.InLane(lane);
    pairs.beside_lane.push_back(of_lane > 0 ? first / of_lane : 1);
  }
  return pairs;
}

// By ranks, or, where pauses spoil these, by what most pairs say.
double Alike(const Pairs& pairs) {
  constexpr size_t kEnough = 30;
  const double by_ranks = RankCorrelation(pairs.a, pairs.b);
  if (by_ranks >= kSameLength || pairs.a.size() < kEnough) return by_ranks;
  return std::max(by_ranks, RobustCorrelation(pairs.a, pairs.b));
}

// Most microbatches are alike, so that for a robust look there is noise at most, but a few of many workers are longer:
// how forward and backward of theirs correlate. Empty: they are too few workers; each may be slow for itself.
std::vector<double> AlikeWhereFewAreLong(const std::vector<Pairs>& in_workers) {
  constexpr size_t kMany = 3, kOf = 3;  // so many, and one of so many
  constexpr double kFar = 3;            // times what most vary by
  std::vector<double> alike;
  for (const Pairs& pairs : in_workers)
    if (Deviation(pairs.beside_lane) >= std::max(kUnevenLengths, kFar * Variation(pairs.beside_lane)))
      alike.push_back(Correlation(pairs.a, pairs.b));
  if (alike.size() < kMany || kOf * alike.size() < in_workers.size()) alike.clear();
  return alike;
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
Lengths SegmentLengths(const Passes& passes, const SlowWorkers& workers) {
  const trace::TracedJob& job = passes.job();
  Lengths lengths(job.lanes.size(), passes.microbatches());
  for (size_t lane = 0; lane < job.lanes.size(); ++lane) {
    std::vector<double> relative;
    for (const uint32_t op : passes.Ops(0, 0))
      if (passes.Has(op, lane)) relative.push_back(passes.Relative(op, lane));
    lengths.At(lane, 0) = relative.empty() ? std::numeric_limits<double>::quiet_NaN() : Median(std::move(relative));
  }
  LeaveOutWorkers(passes, workers, lengths);
  return lengths;
}

// An optimizer's segment does not depend on lengths.
bool Follows(const Passes& passes, uint32_t op, const Lengths& lengths) {
  std::vector<double> own, all;
  for (size_t lane = 0; lane < passes.job().lanes.size(); ++lane) {
    if (!passes.Has(op, lane)) continue;
    own.push_back(passes.Relative(op, lane) / lengths.Slower(lane));
    all.push_back(lengths.At(lane, 0));
  }
  return RankCorrelation(own, all) >= kSameLength;
}

// The power of the length with which a pass of a stage grows: attention grows faster than its inputs, a loss does not.
// The median over microbatches that are far shorter or longer than most of their lane.
double PowerOf(const Passes& passes, int pass, int stage, const Lengths& lengths) {
  constexpr size_t kEnough = 30;
  const size_t lanes = passes.job().lanes.size();
  const std::vector<uint32_t>& ops = passes.Ops(pass, stage);
  std::vector<double> length_logs, own_logs;
  const size_t stride = StrideFor(lanes * ops.size());
  for (size_t lane = 0; lane < lanes; lane += stride) {
    std::vector<double> in_lane;
    for (int i = 0; i < lengths.microbatches(); ++i)
      if (const double length = lengths.At(lane, i); length > 0) in_lane.push_back(length);
    const double length = Median(std::move(in_lane)), own = passes.InLane(pass, stage, lane);
    for (const uint32_t op : ops) {
      const double its = lengths.At(lane, passes.job().ops[op].microbatch);
      if (!passes.Has(op, lane) || !(its > 0) || own <= 0 || passes.Relative(op, lane) <= 0) continue;
      length_logs.push_back(std::log(its / length));
      own_logs.push_back(std::log(passes.Relative(op, lane) / own));
    }
  }
  const double spread = RobustSpread(length_logs);
  std::vector<double> powers;
  for (size_t i = 0; i < length_logs.size(); ++i)
    if (std::abs(length_logs[i]) > spread) powers.push_back(own_logs[i] / length_logs[i]);
  return powers.size() < kEnough ? 1 : std::clamp(Median(std::move(powers)), 0.25, 4.0);
}

Lengths Raised(const trace::TracedJob& job, Lengths lengths, double power) {
  for (size_t lane = 0; lane < job.lanes.size() && power != 1; ++lane)
    for (int i = 0; i < lengths.microbatches(); ++i) lengths.At(lane, i) = std::pow(lengths.At(lane, i), power);
  return lengths;
}

// By how much more, or less, a stage's compute takes in each lane than its microbatches are long.
std::vector<double> BesideLengths(const Passes& passes, int stage, const Lengths& lengths) {
  std::vector<double> beside;
  for (size_t lane = 0; lane < passes.job().lanes.size(); ++lane) {
    double sum = 0, count = 0;
    for (int i = 0; i < lengths.microbatches(); ++i)
      if (const double length = lengths.At(lane, i); !std::isnan(length)) sum += length, ++count;
    beside.push_back(sum > 0 ? passes.InLane(0, stage, lane) * count / sum : 1);
  }
  return beside;
}

// The same of a pipeline's segments. One of several microbatches, or of none, takes what it usually takes.
Remedy EvenLengthsOfSegments(const Passes& passes, const SlowWorkers& workers) {
  const trace::TracedJob& job = passes.job();
  const Lengths lengths = SharedLengths(passes, workers);
  const std::vector<double> means = MeansBySet(job, lengths);
  Remedy remedy;
  for (int stage = 0; stage < job.pp; ++stage) {
    const std::vector<double> beside = BesideLengths(passes, stage, lengths);
    for (const uint32_t op : passes.Ops(0, stage))
      for (size_t set = 0; set < job.steps.size(); ++set)
        for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
          if (!passes.Has(op, lane)) continue;
          const int microbatch = job.ops[op].microbatch;
          const double length = microbatch < 0 ? 0 : lengths.At(lane, microbatch);
          const double usual = passes.Usual(op, lane) * beside[lane];
          Set(passes, op, lane, means[set] * (length > 0 ? passes.Duration(op, lane) / length : usual),
              remedy.durations);
        }
  }
  return remedy;
}

// Every microbatch of a step takes what they take in the mean. variation: of the lengths.
Remedy EvenLengths(const Passes& passes, const SlowWorkers& workers, double variation) {
  const trace::TracedJob& job = passes.job();
  if (passes.OfSegments() && job.pp > 1) return EvenLengthsOfSegments(passes, workers);
  const bool segments = !passes.HasPass(1);
  const Lengths lengths = segments ? SegmentLengths(passes, workers) : SharedLengths(passes, workers);
  Remedy remedy;
  for (int pass = 0; pass < kPasses; ++pass)
    for (int stage = 0; stage < job.pp; ++stage) {
      const bool told = !segments && variation >= kTellsPower;
      const Lengths own = Raised(job, lengths, told ? PowerOf(passes, pass, stage, lengths) : 1);
      const std::vector<double> means = MeansBySet(job, own);
      for (const uint32_t op : passes.Ops(pass, stage)) {
        if (segments && !Follows(passes, op, lengths)) continue;
        for (size_t set = 0; set < job.steps.size(); ++set)
          for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
            const double length = own.At(lane, job.ops[op].microbatch);
            if (passes.Has(op, lane) && length > 0)
              Set(passes, op, lane, passes.Duration(op, lane) * means[set] / length, remedy.durations);
          }
      }
    }
  return remedy;
}

}  // namespace

std::vector<Remedy> FindSequenceLengths(const Passes& passes, const SlowWorkers& workers) {
  const trace::TracedJob& job = passes.job();
  // Without backward passes to compare with, one half of the segments with the other; in a pipeline, only stages.
  const bool halves = passes.OfSegments() && job.pp == 1, only_stages = passes.OfSegments() && job.pp > 1;
  std::vector<LengthsOn> forward;  // by stage
  std::vector<Pairs> in_workers;   // forward and backward
  std::vector<double> variations, correlations, across;
  for (int stage = 0; stage < job.pp; ++stage) {
    forward.emplace_back(passes, 0, stage, halves ? Which::kEven : Which::kAll);
    const LengthsOn backward(passes, passes.OfSegments() ? 0 : 1, stage, halves ? Which::kOdd : Which::kAll);
    for (int dp = 0; dp < job.dp; ++dp) {
      Pairs pairs = PairsOf(passes, forward.back(), backward, passes.LanesOf(dp));
      if (pairs.a.size() < 2) continue;
      variations.push_back(Variation(pairs.beside_pace));
      if (!only_stages) in_workers.push_back(std::move(pairs));
    }
  }
  const double variation = Median(variations);
  for (size_t i = 0; i < in_workers.size() && variation >= kUnevenLengths; ++i)
    correlations.push_back(Alike(in_workers[i]));
  // With several stages the others tell.
  const bool few = job.pp == 1 && (variation < kUnevenLengths || Median(correlations) < kSameLength);
  if (few) correlations = AlikeWhereFewAreLong(in_workers);
  if (few ? correlations.empty() : variation < kUnevenLengths) return {};
  for (size_t stage = 1; stage < forward.size(); ++stage) {
    across.push_back(Alike(PairsOf(passes, forward[stage - 1], forward[stage], AllLanes(job))));
  }
  if (!only_stages && Median(correlations) < kSameLength) return {};
  if (!across.empty() && Median(across) < kSameLength) return {};
  Remedy remedy = EvenLengths(passes, workers, variation);
  remedy.cause.kind = CauseKind::kSequenceLength;
  remedy.cause.evidence = {few ? std::string("most are alike, a few are longer on many ranks")
                               : fmt::format("by {:.0f} % (robust standard deviation{})", 100 * variation,
                                             passes.OfSegments() ? "" : " of forward")};
  if (!only_stages)
    remedy.cause.evidence.insert(
        remedy.cause.evidence.begin(),
        fmt::format("{} vary together (correlation {:.2f} within workers)",
                    halves ? "all segments of a step" : "forward and backward of a microbatch", Median(correlations)));
  if (!across.empty())
    remedy.cause.evidence.push_back(fmt::format("{} alike on all stages (correlation {:.2f})",
                                                only_stages ? "the segments of a microbatch vary" : "and",
                                                Median(across)));
  return {std::move(remedy)};
}

}  // namespace lockstep::explain
