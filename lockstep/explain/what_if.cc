#include "lockstep/explain/what_if.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/parallel.h"
#include "lockstep/explain/large_sample.h"
#include "lockstep/explain/late_starts.h"
#include "lockstep/explain/sample.h"
#include "lockstep/graph/critical_path.h"

namespace lockstep::explain {
namespace {

using graph::Scenario;
using graph::Selection;
using trace::OpType;

constexpr char kFirstOp[] = "first-op";
constexpr double kCostliest = 0.03;  // of all workers: those whose removal is M_W

// Passes of all stages are of one class. Segments of different stages have nothing to do with each other, but ideally
// all stages have as much to do.
void BalanceSegments(const trace::TracedJob& job, std::vector<double>& ideal) {
  std::vector<double> loads(static_cast<size_t>(job.pp));
  double all = 0;
  for (size_t op = 0; op < job.ops.size(); ++op)
    if (job.ops[op].type == OpType::kSegment)
      loads[static_cast<size_t>(job.ops[op].stage)] += ideal[op], all += ideal[op];
  for (size_t op = 0; op < job.ops.size(); ++op)
    if (const double load = loads[static_cast<size_t>(job.ops[op].stage)];
        job.ops[op].type == OpType::kSegment && load > 0)
      ideal[op] *= all / job.pp / load;
}

std::vector<double> IdealDurations(const trace::TracedJob& job, size_t threads) {
  const size_t classes =
      job.ideal_class.empty() ? 0 : *std::max_element(job.ideal_class.begin(), job.ideal_class.end()) + size_t{1};
  std::vector<std::vector<uint32_t>> ops(classes);
  for (uint32_t op = 0; op < job.ops.size(); ++op) ops[job.ideal_class[op]].push_back(op);
  std::vector<double> ideal(job.ops.size());
  ParallelFor(classes, threads, [&](size_t i, size_t /*worker*/) {
    if (ops[i].empty()) return;
    const auto each = [&](const auto& take) {
      for (const uint32_t op : ops[i])
        for (size_t cell = job.graph.Cell(op, 0); cell < job.graph.Cell(op, job.lanes.size()); ++cell)
          if (trace::IsRecorded(job, cell)) take(job.transfers[cell] - trace::DataWaitOf(job, cell));
    };
    const auto mean = [&] {
      double sum = 0, count = 0;
      each([&](float seconds) { sum += static_cast<double>(seconds), ++count; });
      return count == 0 ? 0 : sum / count;
    };
    const bool compute = trace::IsCompute(job.ops[ops[i].front()].type);
    const double seconds = compute ? mean() : MedianOf(ops[i].size() * job.lanes.size(), each);
    for (const uint32_t op : ops[i]) ideal[op] = seconds;
  });
  if (job.pp > 1) BalanceSegments(job, ideal);
  return ideal;
}

}  // namespace

WhatIf::WhatIf(const trace::TracedJob& job, int threads)
    : job_(job),
      ideal_durations_(IdealDurations(job, static_cast<size_t>(threads))),
      replay_(job.graph, {job.transfers, job.delays, ideal_durations_}),
      threads_(static_cast<size_t>(threads)),
      scratches_(ThreadsFor(1)) {
  measured_.assign(job.step_times.begin(), job.step_times.end());
  nodelay_ = Run({All(), None()});
  ideal_ = Run({None(), None()});
  nodelay_mean_ = Mean(nodelay_);
  ideal_mean_ = Mean(ideal_);
}

double WhatIf::launch_slowdown() const { return Mean(measured_) / nodelay_mean_; }

WhatIf::Times WhatIf::Run(const Scenario& scenario) const {
  Times times(job_.steps.size());
  replay_.SetTimes(scenario, scratches_, times);
  return times;
}

size_t WhatIf::ThreadsFor(size_t replays) const {
  constexpr size_t kWorthAThread = 4 << 20;  // cells: some milliseconds
  return std::min(threads_, job_.transfers.size() * replays / kWorthAThread + 1);
}

std::vector<WhatIf::Times> WhatIf::RunEach(const Scenario& base, const std::vector<Scenario>& scenarios) const {
  std::vector<Times> times(scenarios.size(), Times(job_.steps.size()));
  std::vector<graph::Replay::Scratch> scratches(ThreadsFor(scenarios.size()));
  replay_.SetTimesOfEach(base, scenarios, scratches, times);
  return times;
}

std::vector<WhatIf::Times> WhatIf::RunLanes(const std::vector<Selection>& of_ops) const {
  const auto ranks = static_cast<size_t>(job_.dp);
  if (!replay_.CanReplayLanesAlone()) {
    std::vector<Scenario> scenarios;
    scenarios.reserve(of_ops.size() * ranks);
    for (const Selection& ops : of_ops)
      for (int dp = 0; dp < job_.dp; ++dp) scenarios.push_back({Lanes(dp, ops), None()});
    return RunEach({None(), None()}, scenarios);
  }
  std::vector<Times> times(of_ops.size() * ranks, ideal_);  // as it is in a step that the rank has no lane of
  std::vector<graph::Replay::Scratch> scratches(ThreadsFor(2 * of_ops.size()));
  ParallelFor(of_ops.size(), scratches.size(), [&](size_t i, size_t worker) {
    Times alone(job_.lanes.size());
    replay_.AloneTimes(of_ops[i], scratches[worker], alone);
    for (size_t step = 0; step < job_.steps.size(); ++step)
      for (size_t lane = job_.graph.first_lane[step]; lane < job_.graph.first_lane[step + 1]; ++lane)
        times[i * ranks + static_cast<size_t>(job_.lanes[lane].dp)][step] = alone[lane];
  });
  return times;
}

std::vector<double> WhatIf::IdealEnds() const {
  std::vector<double> ends(job_.transfers.size());
  replay_.Ends({None(), None()}, scratches_.front(), ends);
  return ends;
}

Selection WhatIf::None() const { return {job_.ops.size(), Selection::kNone}; }
Selection WhatIf::All() const { return {job_.ops.size(), Selection::kAll}; }

Selection WhatIf::Ops(const OpFilter& filter) const {
  Selection picked = None();
  for (uint32_t op = 0; op < job_.ops.size(); ++op)
    if (filter(op)) picked.Set(op, Selection::kAll);
  return picked;
}

Scenario WhatIf::WithLateStarts() const { return {All(), StepBegins(job_)}; }

// What a data-parallel rank has of the ops that `of_ops` picks.
Selection WhatIf::Lanes(int dp, const Selection& of_ops) const {
  std::vector<uint8_t> mask;
  mask.reserve(job_.lanes.size());
  for (const trace::JobLane& lane : job_.lanes) mask.push_back(lane.dp == dp ? 1 : 0);
  Selection picked = None();
  const uint16_t name = picked.AddMask(std::move(mask));
  for (uint32_t op = 0; op < job_.ops.size(); ++op)
    if (of_ops.Of(op) == Selection::kAll) picked.Set(op, name);
  return picked;
}

// What the workers have, or all that they do not have.
Selection WhatIf::Workers(const std::vector<Worker>& workers, bool inside) const {
  std::vector<std::vector<uint8_t>> masks(static_cast<size_t>(job_.pp));
  for (const Worker& worker : workers) {
    std::vector<uint8_t>& mask = masks[static_cast<size_t>(worker.second)];
    mask.resize(job_.lanes.size());
    for (size_t lane = 0; lane < mask.size(); ++lane)
      if (job_.lanes[lane].dp == worker.first) mask[lane] = 1;
  }
  Selection picked = inside ? None() : All();
  for (int stage = 0; stage < job_.pp; ++stage) {
    std::vector<uint8_t>& mask = masks[static_cast<size_t>(stage)];
    if (mask.empty()) continue;
    if (!inside) std::transform(mask.begin(), mask.end(), mask.begin(), [](uint8_t one) { return one != 0 ? 0 : 1; });
    const uint16_t name = picked.AddMask(std::move(mask));
    for (uint32_t op = 0; op < job_.ops.size(); ++op)
      if (job_.ops[op].stage == stage) picked.Set(op, name);
  }
  return picked;
}

// Each part by itself, against what there is without it.
Split WhatIf::Compare(const std::vector<Part>& parts, bool delays, const Times& base) const {
  std::vector<Scenario> scenarios;
  scenarios.reserve(parts.size());
  for (const Part& part : parts)
    scenarios.push_back(delays ? Scenario{All(), part.picked} : Scenario{part.picked, None()});
  std::vector<std::string> names;
  names.reserve(parts.size());
  for (const Part& part : parts) names.push_back(part.name);
  return Against(base, std::move(names), RunEach({delays ? All() : None(), None()}, scenarios));
}

Split WhatIf::BlockingByDp() const {
  std::vector<std::string> names;
  names.reserve(static_cast<size_t>(job_.dp));
  for (int dp = 0; dp < job_.dp; ++dp) names.push_back(std::to_string(dp));
  return Against(ideal_, std::move(names), RunLanes({All()}));
}

Split WhatIf::Against(const Times& base, std::vector<std::string> names, const std::vector<Times>& times) {
  Split split{std::move(names), {}, std::vector<std::vector<double>>(base.size())};
  for (size_t i = 0; i < times.size(); ++i) {
    split.total.push_back(Mean(times[i]) / Mean(base));
    for (size_t step = 0; step < base.size(); ++step) split.per_step[step].push_back(times[i][step] / base[step]);
  }
  return split;
}

std::vector<WhatIf::Part> WhatIf::Kinds(bool first_op_apart) const {
  const auto is_first = [&](uint32_t op) {
    const trace::JobOp& one = job_.ops[op];
    return first_op_apart &&
           (BeginsStep(one) || (one.type == OpType::kForwardRecv && one.stage > 0 && one.sequence == 0));
  };
  std::vector<Part> parts;
  parts.reserve(job_.kinds.size() + 1);
  for (size_t kind = 0; kind < job_.kinds.size(); ++kind)
    parts.push_back({job_.kinds[kind],
                     Ops([&](uint32_t op) { return job_.ops[op].kind == static_cast<int>(kind) && !is_first(op); })});
  if (first_op_apart) parts.push_back({kFirstOp, Ops(is_first)});
  return parts;
}

std::vector<WhatIf::Part> WhatIf::Dps() const {
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(job_.dp));
  for (int dp = 0; dp < job_.dp; ++dp) parts.push_back({std::to_string(dp), Lanes(dp, All())});
  return parts;
}

std::vector<WhatIf::Part> WhatIf::Stages() const {
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(job_.pp));
  for (int stage = 0; stage < job_.pp; ++stage)
    parts.push_back({std::to_string(stage), Ops([&](uint32_t op) { return job_.ops[op].stage == stage; })});
  return parts;
}

std::vector<WhatIf::Part> WhatIf::PartsOf(By dimension, bool first_op_apart) const {
  if (dimension == By::kKind) return Kinds(first_op_apart);
  return dimension == By::kDp ? Dps() : Stages();
}

const Split& WhatIf::Blocking(By dimension) const {
  std::optional<Split>& kept = blocking_[static_cast<size_t>(dimension)];
  if (!kept) kept = dimension == By::kDp ? BlockingByDp() : Compare(PartsOf(dimension, false), false, ideal_);
  return *kept;
}

const Split& WhatIf::Launch(By dimension) const {
  std::optional<Split>& kept = launch_[static_cast<size_t>(dimension)];
  if (!kept) kept = Compare(PartsOf(dimension, true), true, nodelay_);
  return *kept;
}

std::vector<WhatIf::WorkerCost> WhatIf::Ranked(const std::function<double(const Worker&)>& slowdown) const {
  std::vector<WorkerCost> workers;
  workers.reserve(static_cast<size_t>(job_.dp) * static_cast<size_t>(job_.pp));
  for (int dp = 0; dp < job_.dp; ++dp)
    for (int stage = 0; stage < job_.pp; ++stage)
      if (RankOf({dp, stage}) >= 0) workers.push_back({{dp, stage}, RankOf({dp, stage}), slowdown({dp, stage})});
  std::sort(workers.begin(), workers.end(), [](const WorkerCost& a, const WorkerCost& b) {
    return std::tuple(-a.slowdown, a.rank) < std::tuple(-b.slowdown, b.rank);
  });
  return workers;
}

std::vector<WhatIf::WorkerCost> WhatIf::ByWorker() const {
  std::vector<Selection> stages;
  for (Part& stage : Stages()) stages.push_back(std::move(stage.picked));
  const std::vector<Times> times = RunLanes(stages);
  return Ranked([&](const Worker& worker) {
    return Mean(times[static_cast<size_t>(worker.second) * static_cast<size_t>(job_.dp) +
                      static_cast<size_t>(worker.first)]) /
           ideal_mean_;
  });
}

PathCost WhatIf::CriticalPath() const {
  PathCost cost{std::vector<double>(job_.kinds.size()), 0, {}};
  cost.by_worker.assign(static_cast<size_t>(job_.dp), std::vector<double>(static_cast<size_t>(job_.pp)));
  const auto worker = [&](uint32_t op, uint32_t lane) -> double& {
    return cost.by_worker[static_cast<size_t>(job_.lanes[lane].dp)][static_cast<size_t>(job_.ops[op].stage)];
  };
  const double share = 1 / static_cast<double>(job_.steps.size());
  const Scenario scenario = WithLateStarts();
  std::vector<float> delays = job_.delays;
  for (const auto& [cell, seconds] : LessCarriedOver(job_, scenario.delays)) delays[cell] = seconds;
  const graph::Replay replay(job_.graph, {job_.transfers, delays, ideal_durations_});
  replay.VisitBlocks(scenario, scratches_.front(), [&](const graph::BlockEnds& block) {
    for (size_t set = block.first_set; set < block.last_set; ++set)
      for (const graph::PathOp& one : graph::CriticalPath(job_.graph, replay.durations(), scenario, block, set)) {
        const double own = (one.end - one.begin) * share;
        cost.by_kind[static_cast<size_t>(job_.ops[one.op].kind)] += own;
        cost.late_starts += one.delay * share;
        worker(one.op, one.lane) += own;
        worker(one.waker, one.waker_lane) += one.delay * share;
      }
  });
  return cost;
}

Removal WhatIf::Remove(Selection inside, Selection outside) const {
  Removal removal;
  removal.removed_s = Mean(Run({std::move(outside), None()}));
  removal.added_s = Mean(Run({std::move(inside), None()}));
  const double loss = nodelay_mean_ - ideal_mean_;
  removal.rem = (nodelay_mean_ - removal.removed_s) / loss;
  removal.add = (removal.added_s - ideal_mean_) / loss;
  return removal;
}

Removal WhatIf::RemoveWorkers(const std::vector<Worker>& workers) const {
  return Remove(Workers(workers, true), Workers(workers, false));
}

Removal WhatIf::RemoveCostliest(const std::vector<WorkerCost>& ranked) const {
  const auto count = static_cast<size_t>(std::ceil(kCostliest * static_cast<double>(ranked.size())));
  std::vector<Worker> workers;
  workers.reserve(count);
  for (size_t i = 0; i < count; ++i) workers.push_back(ranked[i].worker);
  return RemoveWorkers(workers);
}

Removal WhatIf::RemoveStage(int stage) const {
  return Remove(Ops([&](uint32_t op) { return job_.ops[op].stage == stage; }),
                Ops([&](uint32_t op) { return job_.ops[op].stage != stage; }));
}

}  // namespace lockstep::explain
