#include "lockstep/explain/late_starts.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "lockstep/base/status.h"
#include "lockstep/explain/large_sample.h"
#include "lockstep/explain/pass_times.h"
#include "lockstep/explain/sample.h"
#include "lockstep/trace/untold_transfers.h"

namespace lockstep::explain {
namespace {

using graph::Selection;
using trace::OpType;

constexpr double kShareOfStep = 0.005;  // what begins late by less of a step is not worth a name

bool IsFirstForward(const trace::JobOp& op) {
  return (op.type == OpType::kForwardCompute || op.type == OpType::kSegment) && op.sequence == 0;
}

// Where workers begin a step.
class Begins {
 public:
  explicit Begins(const trace::TracedJob& job)
      : job_(job),
        backward_(static_cast<size_t>(job.pp) * job.lanes.size(), std::numeric_limits<float>::infinity()),
        communicated_(backward_) {
    for (uint32_t op = 0; op < job.ops.size(); ++op) {
      if (job.ops[op].type == OpType::kBackwardCompute) TakeFirst(op, false, backward_);
      if (!job.busy_until.empty() && !IsCompute(job.ops[op].type)) TakeFirst(op, true, communicated_);
    }
  }

  bool MayBe(uint32_t op) const {
    const trace::JobOp& one = job_.ops[op];
    if (IsFirstForward(one)) return one.stage == 0 || ReceiveFor(op);
    const bool communicates = one.type == OpType::kParamsAllGather || one.type == OpType::kCollective;
    return communicates && job_.graph.DependenciesOf(op).empty();
  }

  // Of an op that may be.
  bool Are(uint32_t op, size_t lane) const {
    const size_t cell = job_.graph.Cell(op, lane);
    if (job_.graph.IsAbsent(cell) || job_.starts[cell] > backward_[Place(op, lane)]) return false;
    const trace::JobOp& one = job_.ops[op];
    if (!IsFirstForward(one))
      return !MayBeStage(job_, job_.lanes[lane].dp) && IsRecorded(job_, cell) &&
             job_.starts[cell] <= communicated_[Place(op, lane)];
    if (one.stage == 0) return true;
    return IsRecorded(job_, cell) && IsRecorded(job_, job_.graph.Cell(*ReceiveFor(op), lane));
  }

 private:
  size_t Place(uint32_t op, size_t lane) const {
    return static_cast<size_t>(job_.ops[op].stage) * job_.lanes.size() + lane;
  }

  // Of a worker in a step, the first moment at which such an op begins, or ends.
  void TakeFirst(uint32_t op, bool ends, std::vector<float>& first) const {
    for (size_t lane = 0; lane < job_.lanes.size(); ++lane) {
      const size_t cell = job_.graph.Cell(op, lane);
      if (!IsRecorded(job_, cell)) continue;
      float& of_place = first[Place(op, lane)];
      of_place = std::min(of_place, job_.starts[cell] + (ends ? job_.durations[cell] : 0));
    }
  }

  std::optional<uint32_t> ReceiveFor(uint32_t op) const {
    for (const uint32_t before : job_.graph.DependenciesOf(op))
      if (IsTransfer(job_.ops[before].type) && !IsSend(job_.ops[before].type)) return before;
    return std::nullopt;
  }

  const trace::TracedJob& job_;
  // [stage * lanes + lane], s: when the first backward pass begins, before which the tracer lost the begin of the step;
  // when the first communication of a profiler's file ends, whose data the next one may need.
  std::vector<float> backward_, communicated_;
};

// By worker, [dp * stages + stage], and step, s: how much later than the first one it ended. 0: not told.
class Lags {
 public:
  explicit Lags(const trace::TracedJob& job)
      : job_(job), workers_(static_cast<size_t>(job.dp) * static_cast<size_t>(job.pp)), usual_(workers_) {
    std::vector<std::vector<double>> of_worker(workers_);
    for (size_t set = 0; set < job.steps.size(); ++set) {
      of_step_.push_back(InStep(set));
      for (size_t worker = 0; worker < workers_; ++worker)
        if (of_step_[set][worker]) of_worker[worker].push_back(*of_step_[set][worker]);
    }
    for (size_t worker = 0; worker < workers_; ++worker) usual_[worker] = LowerMedian(std::move(of_worker[worker]));
  }

  // Before a step, in that before it; of one that was not recorded, as in most.
  double Before(size_t set, int dp, int stage) const {
    const size_t worker = WorkerOf(dp, stage);
    const bool follows = set > 0 && job_.steps[set] == job_.steps[set - 1] + 1;
    return follows ? of_step_[set - 1][worker].value_or(usual_[worker]) : usual_[worker];
  }

 private:
  size_t WorkerOf(int dp, int stage) const {
    return static_cast<size_t>(dp) * static_cast<size_t>(job_.pp) + static_cast<size_t>(stage);
  }

  std::vector<std::optional<double>> InStep(size_t set) const {
    std::vector<std::optional<double>> lags(workers_);
    double first = std::numeric_limits<double>::infinity();
    for (const uint32_t op : job_.graph.finals)
      for (size_t lane = job_.graph.first_lane[set]; lane < job_.graph.first_lane[set + 1]; ++lane) {
        const size_t cell = job_.graph.Cell(op, lane);
        if (!IsRecorded(job_, cell)) continue;
        const double end = static_cast<double>(job_.starts[cell] + job_.durations[cell]);
        lags[WorkerOf(job_.lanes[lane].dp, job_.ops[op].stage)] = end;
        first = std::min(first, end);
      }
    for (std::optional<double>& lag : lags)
      if (lag) *lag -= first;
    return lags;
  }

  const trace::TracedJob& job_;
  const size_t workers_;
  std::vector<std::vector<std::optional<double>>> of_step_;  // [step][worker]
  std::vector<double> usual_;                                // [worker]
};

bool WaitsForNothing(const trace::TracedJob& job, uint32_t op, size_t lane) {
  return std::ranges::all_of(job.graph.DependenciesOf(op),
                             [&](uint32_t before) { return job.graph.IsAbsent(job.graph.Cell(before, lane)); });
}

using Worker = std::pair<int, int>;  // dp, stage

// A worker at the begins of its steps.
struct Starts {
  std::vector<uint32_t> cells;
  std::map<size_t, double> delays;  // by lane, s: the longest
};

std::map<Worker, Starts> StartsOf(const trace::TracedJob& job, const std::vector<float>& delays) {
  const Selection begins = StepBegins(job);
  std::map<Worker, Starts> by_worker;
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t lane = 0; lane < job.lanes.size() && begins.Of(op) != Selection::kNone; ++lane) {
      if (!begins.Picks(op, lane) || MayBeStage(job, job.lanes[lane].dp)) continue;
      const size_t cell = job.graph.Cell(op, lane);
      Starts& starts = by_worker[{job.lanes[lane].dp, job.ops[op].stage}];
      starts.cells.push_back(static_cast<uint32_t>(cell));
      double& longest = starts.delays[lane];
      longest = std::max(longest, static_cast<double>(delays[cell]));
    }
  return by_worker;
}

// Of forward passes that do not begin a step.
double TypicalDelay(const trace::TracedJob& job, const std::vector<float>& delays) {
  std::vector<uint32_t> others;
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    if (const trace::JobOp& one = job.ops[op];
        IsPass(one.type) && one.type != OpType::kBackwardCompute && !BeginsStep(one))
      others.push_back(op);
  return MedianOf(others.size() * job.lanes.size(), [&](const auto& take) {
    for (const uint32_t op : others)
      for (size_t cell = job.graph.Cell(op, 0); cell < job.graph.Cell(op, job.lanes.size()); ++cell)
        if (!job.graph.IsAbsent(cell)) take(delays[cell]);
  });
}

}  // namespace

Selection StepBegins(const trace::TracedJob& job) {
  const Begins begins(job);
  Selection picked(job.ops.size(), Selection::kNone);
  for (uint32_t op = 0; op < job.ops.size(); ++op) {
    if (!begins.MayBe(op)) continue;
    std::vector<uint8_t> mask(job.lanes.size());
    for (size_t lane = 0; lane < mask.size(); ++lane) mask[lane] = begins.Are(op, lane) ? 1 : 0;
    const bool all = std::ranges::find(mask, 0) == mask.end();
    picked.Set(op, all ? Selection::kAll : picked.AddMask(std::move(mask)));
  }
  return picked;
}

CellTimes LessCarriedOver(const trace::TracedJob& job, const Selection& begins) {
  CellTimes less;
  if (!job.busy_until.empty()) return less;
  const Lags lags(job);
  for (uint32_t op = 0; op < job.ops.size(); ++op)
    for (size_t set = 0; set < job.steps.size() && begins.Of(op) != Selection::kNone; ++set)
      for (size_t lane = job.graph.first_lane[set]; lane < job.graph.first_lane[set + 1]; ++lane) {
        const auto cell = static_cast<uint32_t>(job.graph.Cell(op, lane));
        const auto carried = static_cast<float>(lags.Before(set, job.lanes[lane].dp, job.ops[op].stage));
        if (begins.Picks(op, lane) && carried > 0 && WaitsForNothing(job, op, lane))
          less.emplace_back(cell, std::max(0.0F, job.delays[cell] - carried));
      }
  return less;
}

// Workers that begin steps later than passes begin that follow others.
std::vector<Remedy> FindLateStarts(const Passes& passes) {
  const trace::TracedJob& job = passes.job();
  const std::vector<float>& delays = passes.times().delays;
  if (job.tells_loading) return {};
  const double typical = TypicalDelay(job, delays);
  const double least = typical + kShareOfStep * Median({job.step_times.begin(), job.step_times.end()});
  const std::map<Worker, Starts> by_worker = StartsOf(job, delays);
  Remedy remedy;
  std::vector<double> late;
  for (const auto& [worker, starts] : by_worker) {
    std::vector<double> own;
    for (const auto& [lane, delay] : starts.delays) own.push_back(delay);
    if (Median(own) < least && Mean(own) < least) continue;
    for (const uint32_t cell : starts.cells)
      if (static_cast<double>(delays[cell]) > typical) remedy.delays.emplace_back(cell, static_cast<float>(typical));
    remedy.cause.suspects.push_back(WorkerSuspect(job, worker.first, worker.second));
    late.push_back(Mean(own));
  }
  if (late.empty()) return {};
  remedy.cause.kind = CauseKind::kDataLoading;
  remedy.cause.evidence = {fmt::format("a step is begun {} late on {} of {} workers, on others {}",
                                       TimeText(Mean(late)), late.size(), by_worker.size(), TimeText(typical))};
  return {std::move(remedy)};
}

}  // namespace lockstep::explain
