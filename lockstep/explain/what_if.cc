#include "lockstep/explain/what_if.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "lockstep/explain/sample.h"

namespace lockstep::explain {
namespace {

using graph::Scenario;
using graph::Selection;
using trace::OpType;

constexpr std::array<const char*, kKinds> kNames = {"forward-compute",
                                                    "backward-compute",
                                                    "forward-pp-comm",
                                                    "backward-pp-comm",
                                                    "params-all-gather",
                                                    "grads-reduce-scatter",
                                                    "layernorm-grads-all-reduce",
                                                    "embedding-grads-all-reduce",
                                                    "separate-grads-all-reduce",
                                                    "optimizer-clip-main-grad",
                                                    "optimizer",
                                                    "gc"};
constexpr char kFirstOp[] = "first-op";

// Of all ops and lanes of one type that are there.
std::vector<float> TransfersOf(const trace::StragglerJob& job, OpType type) {
  std::vector<float> values;
  const size_t lanes = job.lanes.size();
  for (size_t op = 0; op < job.ops.size(); ++op) {
    if (job.ops[op].type != type) continue;
    for (size_t cell = op * lanes; cell < (op + 1) * lanes; ++cell)
      if (job.graph.absent.empty() || job.graph.absent[cell] == 0) values.push_back(job.transfers[cell]);
  }
  return values;
}

double Ideal(OpType type, std::vector<float> values) {
  if (values.empty()) return 0;
  if (trace::IsCompute(type))
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return static_cast<double>(*middle);
  const float below = *std::max_element(values.begin(), middle);
  return (static_cast<double>(below) + static_cast<double>(*middle)) / 2;
}

std::vector<double> IdealDurations(const trace::StragglerJob& job) {
  std::array<double, trace::kOpTypes> of_type{};
  for (int type = 0; type < trace::kOpTypes; ++type)
    of_type[static_cast<size_t>(type)] = Ideal(OpType(type), TransfersOf(job, OpType(type)));
  std::vector<double> ideal;
  ideal.reserve(job.ops.size());
  for (const trace::JobOp& op : job.ops) ideal.push_back(of_type[static_cast<size_t>(op.type)]);
  return ideal;
}

}  // namespace

int KindOf(OpType type) {
  switch (type) {
    case OpType::kForwardSend:
    case OpType::kForwardRecv:
      return 2;
    case OpType::kBackwardSend:
    case OpType::kBackwardRecv:
      return 3;
    default:
      return static_cast<int>(std::find(kNames.begin(), kNames.end(), std::string_view(trace::OpTypeName(type))) -
                              kNames.begin());
  }
}

const char* KindName(int kind) { return kNames[static_cast<size_t>(kind)]; }

WhatIf::WhatIf(const trace::StragglerJob& job)
    : job_(job),
      ideal_durations_(IdealDurations(job)),
      replay_(job.graph, {job.transfers, job.delays, ideal_durations_}) {
  measured_.assign(job.step_times.begin(), job.step_times.end());
  nodelay_ = Run({All(), None()});
  ideal_ = Run({None(), None()});
  nodelay_mean_ = Mean(nodelay_);
  ideal_mean_ = Mean(ideal_);
}

double WhatIf::launch_slowdown() const { return Mean(measured_) / nodelay_mean_; }

WhatIf::Times WhatIf::Run(const Scenario& scenario) const {
  Times times(job_.steps.size());
  replay_.SetTimes(scenario, scratch_, times);
  return times;
}

Selection WhatIf::None() const { return {job_.ops.size(), Selection::kNone}; }
Selection WhatIf::All() const { return {job_.ops.size(), Selection::kAll}; }

Selection WhatIf::Ops(const OpFilter& filter) const {
  Selection picked = None();
  for (uint32_t op = 0; op < job_.ops.size(); ++op)
    if (filter(op)) picked.Set(op, Selection::kAll);
  return picked;
}

Selection WhatIf::Lanes(int dp) const {
  std::vector<uint8_t> mask;
  mask.reserve(job_.lanes.size());
  for (const trace::JobLane& lane : job_.lanes) mask.push_back(lane.dp == dp ? 1 : 0);
  Selection picked = None();
  const uint16_t name = picked.AddMask(std::move(mask));
  for (uint32_t op = 0; op < job_.ops.size(); ++op) picked.Set(op, name);
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
  Split split{{}, {}, std::vector<std::vector<double>>(base.size())};
  for (const Part& part : parts) {
    const Times times = delays ? Run({All(), part.picked}) : Run({part.picked, None()});
    split.names.push_back(part.name);
    split.total.push_back(Mean(times) / Mean(base));
    for (size_t step = 0; step < base.size(); ++step) split.per_step[step].push_back(times[step] / base[step]);
  }
  return split;
}

Split WhatIf::Blocking(const std::vector<Part>& parts) const { return Compare(parts, false, ideal_); }
Split WhatIf::Launch(const std::vector<Part>& parts) const { return Compare(parts, true, nodelay_); }

std::vector<WhatIf::Part> WhatIf::Kinds(bool first_op_apart) const {
  const auto is_first = [&](uint32_t op) {
    const trace::JobOp& one = job_.ops[op];
    return first_op_apart && one.sequence == 0 &&
           one.type == (one.stage == 0 ? OpType::kForwardCompute : OpType::kForwardRecv);
  };
  std::vector<Part> parts;
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto has = [&](uint32_t op) { return KindOf(job_.ops[op].type) == kind && !is_first(op); };
    if (std::any_of(job_.ops.begin(), job_.ops.end(), [&](const auto& op) { return KindOf(op.type) == kind; }))
      parts.push_back({KindName(kind), Ops(has)});
  }
  if (first_op_apart) parts.push_back({kFirstOp, Ops(is_first)});
  return parts;
}

std::vector<WhatIf::Part> WhatIf::Dps() const {
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(job_.dp));
  for (int dp = 0; dp < job_.dp; ++dp) parts.push_back({std::to_string(dp), Lanes(dp)});
  return parts;
}

std::vector<WhatIf::Part> WhatIf::Stages() const {
  std::vector<Part> parts;
  parts.reserve(static_cast<size_t>(job_.pp));
  for (int stage = 0; stage < job_.pp; ++stage)
    parts.push_back({std::to_string(stage), Ops([&](uint32_t op) { return job_.ops[op].stage == stage; })});
  return parts;
}

Split WhatIf::ByKind() const { return Blocking(Kinds(false)); }
Split WhatIf::ByDp() const { return Blocking(Dps()); }
Split WhatIf::ByStage() const { return Blocking(Stages()); }
Split WhatIf::LaunchByKind() const { return Launch(Kinds(true)); }
Split WhatIf::LaunchByDp() const { return Launch(Dps()); }
Split WhatIf::LaunchByStage() const { return Launch(Stages()); }

std::vector<std::vector<double>> WhatIf::ByWorker() const {
  std::vector<std::vector<double>> slowdowns(static_cast<size_t>(job_.dp));
  for (int dp = 0; dp < job_.dp; ++dp)
    for (int stage = 0; stage < job_.pp; ++stage)
      slowdowns[static_cast<size_t>(dp)].push_back(Mean(Run({Workers({{dp, stage}}, true), None()})) / ideal_mean_);
  return slowdowns;
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

Removal WhatIf::RemoveStage(int stage) const {
  return Remove(Ops([&](uint32_t op) { return job_.ops[op].stage == stage; }),
                Ops([&](uint32_t op) { return job_.ops[op].stage != stage; }));
}

}  // namespace lockstep::explain
