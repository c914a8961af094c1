// Causes between workers: a link, a ring, the fabric. docs/models/explain.md has the rules.
#include <algorithm>
#include <map>

#include "lockstep/base/median.h"
#include "lockstep/base/status.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"
#include "lockstep/explain/unsettled.h"
#include "lockstep/trace/kineto_told.h"
#include "lockstep/trace/worker_clocks.h"

namespace lockstep::explain {
namespace {

using trace::OpType;

constexpr double kSpread = 6;        // robust standard deviations: an outlier
constexpr double kFarOff = 1.5;      // times what is usual
constexpr double kOften = 0.1;       // of the transfers of a link: it is the link
constexpr double kRingSlower = 1.3;  // times the other stages' rings, or the other steps
constexpr double kLittle = .01;      // of the time of all rings

// The two stages that a transfer is between, the lower one: of the last stage and the first, where chunks wrap around,
// the last.
int LinkOf(const trace::JobOp& op, int pp) {
  const bool to_next = op.type == OpType::kForwardSend || op.type == OpType::kBackwardRecv;
  return to_next ? op.stage : (op.stage + pp - 1) % pp;
}

// Of each op, whether it is between ranks of one stage: what all stages have in common is nobody's ring.
std::vector<bool> IsWithinStage(const trace::TracedJob& job) {
  std::vector<bool> within(job.ops.size());
  for (const graph::Unit& unit : job.graph.units)
    for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
      within[op] = std::all_of(job.ops.begin() + unit.first, job.ops.begin() + unit.first + unit.count,
                               [&](const trace::JobOp& one) { return one.stage == job.ops[op].stage; });
  return within;
}

// Of each op, whether it is a send or receive whose other end is not known: what it takes may be its peer's coming
// late.
std::vector<bool> IsOfOneEnd(const trace::TracedJob& job) {
  std::vector<bool> of_one = AreSingle(job);
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    of_one[op] = of_one[op] && (IsTransfer(job.ops[op].type) ||
                                trace::IsTransferKernel(job.kinds[static_cast<size_t>(job.ops[op].kind)]));
  return of_one;
}

// A pace that makes communication longer, too; where passes are shorter than usual, it need not be.
double Slower(double pace) { return std::max(1.0, pace); }

// Durations of the collectives, or transfers, of one class on one stage, per step.
class Rings {
 public:
  explicit Rings(const Passes& passes, bool (*belongs)(OpType) = trace::IsDataParallelComm)
      : passes_(passes), job_(passes.job()), times_(passes.times()) {
    const trace::TracedJob& job = passes.job();
    const std::vector<bool> within = IsWithinStage(job), of_one_end = IsOfOneEnd(job);
    for (uint32_t op = 0; op < job.ops.size(); ++op)
      if (belongs(job.ops[op].type) && (within[op] || IsTransfer(job.ops[op].type)) && !of_one_end[op])
        ops_[{job.ideal_class[op], job.ops[op].stage}].push_back(op);
    for (const auto& [ring, ops] : ops_)
      for (size_t set = 0; set < job.steps.size(); ++set) by_step_[ring].push_back(InStep(ops, set));
    for (const auto& [ring, steps] : by_step_) {
      usual_[ring] = Median(steps);
      all_ += TakenBy(ring);
    }
  }
  using Ring = std::pair<uint32_t, int>;  // ideal class, stage
  const std::map<Ring, std::vector<double>>& by_step() const { return by_step_; }
  const std::string& NameOf(const Ring& ring) const {
    return job_.kinds[static_cast<size_t>(job_.ops[ops_.at(ring).front()].kind)];
  }
  // If all take longer in this step than in most, as long as usual instead. By how much; 0: they don't. What longer
  // passes explain, say longer sequences, is not the network's.
  double MendIfAllSlow(size_t set, Remedy& remedy) const {
    const double allowed = Slower(passes_.Pace(job_.graph.first_lane[set]));
    std::vector<double> ratios;
    std::vector<Ring> rings;  // that take more than a little of it: others have no part in how fast the network is
    for (const auto& [ring, steps] : by_step_) {
      if (TakenBy(ring) <= kLittle * all_ || steps[set] <= 0) continue;
      rings.push_back(ring);
      ratios.push_back(steps[set] / usual_.at(ring) / allowed);
    }
    if (ratios.empty() || *std::min_element(ratios.begin(), ratios.end()) < kRingSlower) return 0;
    for (size_t i = 0; i < rings.size(); ++i) Divide(rings[i], set, ratios[i], remedy);
    return Median(std::move(ratios));
  }
  // Divides what the ring's ops take in a step.
  void Divide(const Ring& ring, size_t set, double ratio, Remedy& remedy) const {
    for (const uint32_t op : ops_.at(ring))
      for (size_t lane = job_.graph.first_lane[set]; lane < job_.graph.first_lane[set + 1]; ++lane) {
        const size_t cell = op * job_.lanes.size() + lane;
        if (!job_.graph.IsAbsent(cell))
          remedy.durations.emplace_back(static_cast<uint32_t>(cell),
                                        static_cast<float>(static_cast<double>(times_.durations[cell]) / ratio));
      }
  }

 private:
  // In a usual step.
  double TakenBy(const Ring& ring) const { return usual_.at(ring) * static_cast<double>(ops_.at(ring).size()); }
  double InStep(const std::vector<uint32_t>& ops, size_t set) const {
    std::vector<double> values;
    for (const uint32_t op : ops)
      for (size_t lane = job_.graph.first_lane[set]; lane < job_.graph.first_lane[set + 1]; ++lane) {
        const size_t cell = op * job_.lanes.size() + lane;
        if (!job_.graph.IsAbsent(cell)) values.push_back(static_cast<double>(times_.durations[cell]));
      }
    return values.empty() ? 0 : Median(std::move(values));
  }

  const Passes& passes_;
  const trace::TracedJob& job_;
  const Times& times_;
  std::map<Ring, std::vector<uint32_t>> ops_;
  std::map<Ring, std::vector<double>> by_step_;
  std::map<Ring, double> usual_;  // of by_step_
  double all_ = 0;                // that all rings take in a usual step
};

struct Link {
  size_t seen = 0, transfers = 0;
  size_t receives = 0;         // of them
  size_t mended = 0;           // of the receives: they came out below zero
  std::vector<double> sample;  // of what they take, s
  std::vector<double> slow;
  std::vector<uint32_t> cells;
};

// What a transfer takes on a link that is no slower than half of them.
Center CenterOfMost(const std::vector<Link>& links) {
  std::vector<double> medians, spreads;
  for (const Link& link : links) {
    if (link.sample.empty()) continue;
    const auto [median, spread] = CenterOf(link.sample);
    medians.push_back(median);
    spreads.push_back(spread);
  }
  const double usual = LowerMedian(medians);
  return {usual, std::max(LowerMedian(spreads), RobustDeviation(medians, usual))};
}

}  // namespace

// A link is slow whose transfers are outliers among those of the other links, and not just once.
std::vector<Remedy> FindSlowLinks(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  const Times& times = passes.times();
  const size_t lanes = job.lanes.size();
  std::vector<Link> links(static_cast<size_t>(job.pp) * static_cast<size_t>(job.dp));  // [link][dp]
  std::vector<uint32_t> transfers;
  const std::vector<bool> of_one_end = IsOfOneEnd(job);
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    if (IsTransfer(job.ops[op].type) && !of_one_end[op]) transfers.push_back(op);
  const auto of_op = [&](uint32_t op) {  // [dp]
    return &links[static_cast<size_t>(LinkOf(job.ops[op], job.pp)) * static_cast<size_t>(job.dp)];
  };
  const size_t stride = StrideFor(transfers.size() * lanes / links.size());
  for (const uint32_t op : transfers)
    for (size_t lane = 0; lane < lanes; ++lane) {
      Link& link = of_op(op)[job.lanes[lane].dp];
      const size_t cell = op * lanes + lane;
      if (!job.graph.IsAbsent(cell) && link.seen++ % stride == 0)
        link.sample.push_back(static_cast<double>(times.durations[cell]));
    }
  const Center center = CenterOfMost(links);
  const double usual = center.median, limit = std::max(kFarOff * usual, usual + kSpread * center.spread);
  for (const uint32_t op : transfers) {
    Link* const of_dp = of_op(op);
    for (size_t lane = 0; lane < lanes; ++lane) {
      const size_t cell = op * lanes + lane;
      if (job.graph.IsAbsent(cell)) continue;
      Link& link = of_dp[job.lanes[lane].dp];
      ++link.transfers;
      if (!IsSend(job.ops[op].type)) {
        ++link.receives;
        if (IsMended(job, cell)) ++link.mended;
      }
      if (static_cast<double>(times.durations[cell]) <= limit * Slower(passes.Pace(lane))) continue;
      link.slow.push_back(static_cast<double>(times.durations[cell]));
      link.cells.push_back(static_cast<uint32_t>(cell));
    }
  }
  std::vector<Remedy> found;
  for (size_t i = 0; i < links.size(); ++i) {
    const Link& link = links[i];
    // Then one end's clock is off, which makes transfers too long at the other.
    if (link.mended > 0 &&
        static_cast<double>(link.mended) >= trace::kClocksDisagree * static_cast<double>(link.receives))
      continue;
    if (link.slow.empty() || static_cast<double>(link.slow.size()) < kOften * static_cast<double>(link.transfers))
      continue;
    Remedy remedy;
    const int stage = static_cast<int>(i) / job.dp, dp = static_cast<int>(i) % job.dp;
    for (const int end : {stage, (stage + 1) % job.pp}) remedy.cause.suspects.push_back(WorkerSuspect(job, dp, end));
    for (const uint32_t cell : link.cells)
      remedy.durations.emplace_back(cell, static_cast<float>(usual * Slower(passes.Pace(cell % lanes))));
    remedy.cause.kind = CauseKind::kLink;
    remedy.cause.evidence = {fmt::format(
        "{} of {} transfers between stages {} and {} of data-parallel rank {} take {}, usual is {}", link.slow.size(),
        link.transfers, stage, (stage + 1) % job.pp, dp, TimeText(Median(link.slow)), TimeText(usual))};
    found.push_back(std::move(remedy));
  }
  return found;
}

// One stage's collectives take longer than those of the other stages.
std::vector<Remedy> FindSlowRings(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  const Rings rings(passes);
  std::vector<Remedy> found;
  for (int stage = 0; stage < job.pp && job.pp > 1; ++stage) {
    Remedy remedy;
    for (const auto& [ring, steps] : rings.by_step()) {
      if (ring.second != stage) continue;
      std::vector<double> others;
      for (const auto& [other, other_steps] : rings.by_step())
        if (other.first == ring.first && other.second != stage) others.push_back(Median(other_steps));
      const double usual = Median(others), own = Median(steps);
      if (usual <= 0 || own < kRingSlower * usual) continue;
      for (size_t set = 0; set < steps.size(); ++set) rings.Divide(ring, set, own / usual, remedy);
      remedy.cause.evidence.push_back(
          fmt::format("{} takes {}, on the other stages {}", rings.NameOf(ring), TimeText(own), TimeText(usual)));
    }
    if (remedy.durations.empty()) continue;
    remedy.cause.kind = CauseKind::kRing;
    remedy.cause.suspects.push_back({{}, stage, {}, {}, {}});
    found.push_back(std::move(remedy));
  }
  return found;
}

// In some steps the collectives of all stages take longer than in the others, and maybe the transfers between them.
std::vector<Remedy> FindSlowFabric(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  const Rings rings(passes);
  Remedy remedy;
  std::vector<double> factors;
  std::vector<size_t> sets;
  for (size_t set = 0; set < job.steps.size(); ++set) {
    const double factor = rings.MendIfAllSlow(set, remedy);
    if (factor == 0) continue;
    factors.push_back(factor);
    sets.push_back(set);
  }
  if (sets.empty()) return {};
  const Rings transfers(passes, trace::IsTransfer);
  const auto with_transfers =
      std::count_if(sets.begin(), sets.end(), [&](size_t set) { return transfers.MendIfAllSlow(set, remedy) > 0; });
  remedy.cause.kind = CauseKind::kFabric;
  remedy.cause.suspects.push_back({{}, {}, {}, job.steps[sets.front()], job.steps[sets.back()]});
  remedy.cause.evidence = {
      fmt::format("in {} of {} steps all data-parallel collectives take longer, {:.1f} times as long", sets.size(),
                  job.steps.size(), Median(factors))};
  if (with_transfers > 0)
    remedy.cause.evidence.push_back(fmt::format("and in {} of them all transfers between stages", with_transfers));
  return {std::move(remedy)};
}

}  // namespace lockstep::explain
