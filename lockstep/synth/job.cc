#include "lockstep/synth/job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "lockstep/graph/replay.h"
#include "lockstep/synth/chance.h"
#include "lockstep/synth/schedule.h"
#include "lockstep/synth/times.h"
#include "lockstep/trace/pipeline.h"

namespace lockstep::synth {
namespace {

using trace::JobOp;
using trace::OpType;

// The ops of all stages, each with its place in the program of its stage.
class Program {
 public:
  explicit Program(const JobShape& shape) : shape_(shape) {
    for (int stage = 0; stage < shape.pp; ++stage) AddStage(stage);
  }
  const std::vector<JobOp>& ops() const { return ops_; }
  trace::ReferenceLane Lane() const { return {ops_, begins_, ends_}; }

 private:
  void Add(OpType type, int stage, int chunk = -1, int microbatch = -1) {
    ops_.push_back(
        {type, stage, sequence_[{type, stage}]++, chunk, microbatch, IsPass(type) ? chunk * shape_.pp + stage : -1});
    begins_.push_back(static_cast<float>(ops_.size()));
    ends_.push_back(static_cast<float>(ops_.size()) + 0.5F);
  }

  void AddStage(int stage) {
    const bool parallel = shape_.dp > 1;
    for (int chunk = 0; parallel && chunk < shape_.vpp; ++chunk) Add(OpType::kParamsAllGather, stage, chunk);
    std::vector<int> left(static_cast<size_t>(shape_.vpp), shape_.microbatches);
    for (const Compute& one : Schedule(stage, shape_.pp, shape_.vpp, shape_.microbatches)) {
      AddCompute(one, stage);
      const bool last = !one.forward && --left[static_cast<size_t>(one.chunk)] == 0;
      if (last && parallel && shape_.overlapped) Add(OpType::kGradsReduceScatter, stage, one.chunk);
    }
    Add(OpType::kGc, stage, -1, 0);
    Add(OpType::kLayernormGradsAllReduce, stage);
    if (shape_.pp > 1 && (stage == 0 || stage == shape_.pp - 1)) Add(OpType::kEmbeddingGradsAllReduce, stage);
    if (parallel && shape_.overlapped) Add(OpType::kSeparateGradsAllReduce, stage);
    for (int chunk = 0; parallel && !shape_.overlapped && chunk < shape_.vpp; ++chunk)
      Add(OpType::kGradsReduceScatter, stage, chunk);
    Add(OpType::kOptimizerClipMainGrad, stage);
    Add(OpType::kOptimizer, stage);
  }

  void AddCompute(const Compute& one, int stage) {
    const int place = one.chunk * shape_.pp + stage, last = shape_.vpp * shape_.pp - 1;
    const bool from_before = place > 0, from_behind = place < last;
    if (one.forward ? from_before : from_behind) Add(one.forward ? OpType::kForwardRecv : OpType::kBackwardRecv, stage);
    Add(one.forward ? OpType::kForwardCompute : OpType::kBackwardCompute, stage, one.chunk, one.microbatch);
    if (one.forward ? from_behind : from_before) Add(one.forward ? OpType::kForwardSend : OpType::kBackwardSend, stage);
  }

  const JobShape& shape_;
  std::vector<JobOp> ops_;
  std::vector<float> begins_, ends_;  // places in the program, as if they were times
  std::map<std::pair<OpType, int>, int> sequence_;
};

// Durations and delays of every op and lane, with the faults in them.
class Sampler {
 public:
  Sampler(const JobShape& shape, const std::vector<Fault>& faults, const graph::OpGraph& graph,
          const std::vector<JobOp>& ops, uint64_t seed)
      : shape_(shape), faults_(faults), graph_(graph), ops_(ops), chance_(seed), lanes_(graph.lanes()) {}

  void Sample() {
    durations.resize(graph_.ops() * lanes_);
    delays.assign(durations.size(), 0);
    for (const Fault& fault : faults_)
      if (fault.kind == FaultKind::kSequenceLength) SampleLengths(fault.factor);
    for (const graph::Unit& unit : graph_.units)
      for (uint32_t op = unit.first; op < unit.first + unit.count; ++op)
        for (size_t lane = 0; lane < lanes_; ++lane) SampleOne(op, lane, unit);
    for (const Fault& fault : faults_)
      if (fault.kind == FaultKind::kGc) AddPauses(fault);
  }

  std::vector<float> durations, delays;

 private:
  int StepOf(size_t lane) const { return static_cast<int>(lane) / shape_.dp; }
  size_t FirstLane(size_t lane) const { return lane - static_cast<size_t>(DpOf(lane)); }  // of its step
  int DpOf(size_t lane) const { return static_cast<int>(lane) % shape_.dp; }

  double Base(OpType type) const {
    switch (type) {
      case OpType::kForwardCompute:
        return shape_.forward.value / shape_.vpp;
      case OpType::kBackwardCompute:
        return shape_.backward.value / shape_.vpp;
      case OpType::kForwardSend:
      case OpType::kForwardRecv:
      case OpType::kBackwardSend:
      case OpType::kBackwardRecv:
        return shape_.transfer.value;
      case OpType::kParamsAllGather:
        return shape_.gather.value;
      case OpType::kGradsReduceScatter:
        return shape_.reduce.value;
      case OpType::kEmbeddingGradsAllReduce:
        return shape_.embedding.value;
      case OpType::kOptimizerClipMainGrad:
        return shape_.clip.value;
      case OpType::kOptimizer:
        return shape_.optimizer.value;
      case OpType::kLayernormGradsAllReduce:
      case OpType::kSeparateGradsAllReduce:
        return shape_.transfer.value;
      case OpType::kGc:
      case OpType::kSegment:     // of jobs from profiler traces
      case OpType::kCollective:  // the same
        return 0;
    }
    return 0;
  }

  void SampleOne(uint32_t op, size_t lane, const graph::Unit& unit) {
    const JobOp& one = ops_[op];
    const size_t cell = op * lanes_ + lane;
    double value = Base(one.type) * chance_.Spread(shape_.jitter);
    for (const Fault& fault : faults_) value = value * Factor(fault, one, lane) + Added(fault, one, lane);
    if (IsPass(one.type) && !lengths_.empty())
      value *= lengths_[lane * static_cast<size_t>(shape_.microbatches) + static_cast<size_t>(one.microbatch)];
    durations[cell] = static_cast<float>(value);
    // Who communicates with each other sees the same.
    if (unit.synchronised)
      durations[cell] = durations[unit.first * lanes_ + (unit.scope == graph::Scope::kLane ? lane : FirstLane(lane))];
    double delay = shape_.launch.value * chance_.Spread(shape_.jitter);
    for (const Fault& fault : faults_)
      if (fault.kind == FaultKind::kDataLoading && BeginsStep(one) && DpOf(lane) == fault.dp)
        delay += fault.seconds.value;
    delays[cell] = static_cast<float>(delay);
  }

  bool IsDuring(const Fault& fault, size_t lane) const {
    return StepOf(lane) >= fault.first_step && StepOf(lane) <= fault.last_step;
  }

  double Factor(const Fault& fault, const JobOp& op, size_t lane) const {
    bool struck = false;
    switch (fault.kind) {
      case FaultKind::kWorker:
        struck = IsPass(op.type) && DpOf(lane) == fault.dp && op.stage == fault.stage;
        break;
      case FaultKind::kTransientWorker:
        struck = IsPass(op.type) && DpOf(lane) == fault.dp && op.stage == fault.stage && IsDuring(fault, lane);
        break;
      case FaultKind::kStage:
        struck = IsPass(op.type) && op.stage == fault.stage;
        break;
      case FaultKind::kRing:
        struck = IsDataParallelComm(op.type) && op.stage == fault.stage;
        break;
      case FaultKind::kFabric:
        struck = IsDataParallelComm(op.type) && IsDuring(fault, lane);
        break;
      default:
        break;
    }
    return struck ? fault.factor : 1;
  }

  double Added(const Fault& fault, const JobOp& op, size_t lane) const {
    const bool struck = fault.kind == FaultKind::kLink && op.type == OpType::kForwardSend && op.stage == fault.stage &&
                        DpOf(lane) == fault.dp;
    return struck ? fault.seconds.value : 0;
  }

  void SampleLengths(double sigma) {
    lengths_.resize(lanes_ * static_cast<size_t>(shape_.microbatches));
    for (double& one : lengths_) one = chance_.Spread(sigma);
  }

  void AddPauses(const Fault& fault) {
    for (size_t lane = 0; lane < lanes_; ++lane)
      for (int stage = 0; stage < shape_.pp; ++stage) {
        if (chance_.Uniform() >= fault.share) continue;
        const auto wanted =
            static_cast<int>(chance_.Below(static_cast<size_t>(shape_.microbatches) * static_cast<size_t>(shape_.vpp)));
        for (uint32_t op = 0; op < ops_.size(); ++op)
          if (ops_[op].type == OpType::kForwardCompute && ops_[op].stage == stage && ops_[op].sequence == wanted)
            durations[op * lanes_ + lane] += static_cast<float>(fault.seconds.value);
      }
  }

  const JobShape& shape_;
  const std::vector<Fault>& faults_;
  const graph::OpGraph& graph_;
  const std::vector<JobOp>& ops_;
  Chance chance_;
  const size_t lanes_;
  std::vector<double> lengths_;  // [lane * microbatches + microbatch], relative
};

std::vector<uint32_t> FirstLanes(const JobShape& shape) {
  std::vector<uint32_t> first;
  for (int step = 0; step <= shape.steps; ++step) first.push_back(static_cast<uint32_t>(step * shape.dp));
  return first;
}

// When each op starts: behind what it waits for, and its delay.
std::vector<double> Starts(const graph::OpGraph& graph, const std::vector<double>& ends,
                           const std::vector<float>& delays) {
  std::vector<double> starts(ends.size());
  const size_t lanes = graph.lanes();
  for (uint32_t op = 0; op < graph.ops(); ++op)
    for (size_t lane = 0; lane < lanes; ++lane) {
      double at = 0;
      for (const uint32_t before : graph.DependenciesOf(op)) at = std::max(at, ends[before * lanes + lane]);
      starts[op * lanes + lane] = at + static_cast<double>(delays[op * lanes + lane]);
    }
  return starts;
}

trace::StragglerRows Rows(const JobShape& shape, const graph::OpGraph& graph, const std::vector<JobOp>& ops,
                          const std::vector<double>& starts, const std::vector<double>& ends) {
  trace::StragglerRows rows;
  for (int dp = 0; dp < shape.dp; ++dp) {
    rows.ranks.emplace_back();
    for (int stage = 0; stage < shape.pp; ++stage) rows.ranks.back().push_back((stage * shape.dp + dp) * shape.tp);
  }
  const size_t lanes = graph.lanes();
  for (uint32_t step = 0; step < static_cast<uint32_t>(shape.steps); ++step) {
    rows.steps.push_back(step);
    double first = std::numeric_limits<double>::infinity();
    for (uint32_t op = 0; op < graph.ops(); ++op)
      for (size_t lane = graph.first_lane[step]; lane < graph.first_lane[step + 1]; ++lane)
        first = std::min(first, starts[op * lanes + lane]);
    for (size_t lane = graph.first_lane[step]; lane < graph.first_lane[step + 1]; ++lane)
      for (uint32_t op = 0; op < graph.ops(); ++op) {
        const size_t cell = op * lanes + lane;
        rows.Add({step, static_cast<uint16_t>(lane - graph.first_lane[step]), static_cast<uint8_t>(ops[op].stage),
                  ops[op].type, static_cast<uint16_t>(ops[op].sequence), static_cast<int16_t>(ops[op].global_chunk),
                  static_cast<int16_t>(ops[op].microbatch), static_cast<int8_t>(ops[op].chunk),
                  static_cast<float>(starts[cell] - first), static_cast<float>(ends[cell] - starts[cell])});
      }
  }
  return rows;
}

absl::Status Fits(const Fault& fault, const JobShape& shape) {
  const std::tuple<const char*, int, int> places[] = {
      {"dp", fault.dp, shape.dp}, {"stage", fault.stage, shape.pp}, {"first step", fault.first_step, shape.steps}};
  for (const auto& [name, value, limit] : places)
    if (value < 0 || value >= limit)
      return InvalidArgument("fault {}: {} is {}, expected 0 to {}", FaultKindName(fault.kind), name, value, limit - 1);
  if (fault.kind != FaultKind::kLink) return absl::OkStatus();
  if (shape.pp == 1) return InvalidArgument("fault link: a link is between two stages, and pp is 1");
  if (fault.stage + 1 >= shape.pp)
    return InvalidArgument("fault link: no stage follows stage {}; expected 0 to {}", fault.stage, shape.pp - 2);
  return absl::OkStatus();
}

}  // namespace

absl::Status JobShape::Validate() const {
  const std::tuple<const char*, int, int> sizes[] = {{"dp", dp, 65536},
                                                     {"pp", pp, 256},
                                                     {"tp", tp, 65536},
                                                     {"vpp", vpp, 127},
                                                     {"microbatches", microbatches, 32768 / std::clamp(vpp, 1, 127)},
                                                     {"steps", steps, 1 << 20}};
  for (const auto& [name, value, most] : sizes)
    if (value < 1 || value > most) return InvalidArgument("{} must be 1 to {}, found {}", name, most, value);
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  if (int64_t{dp} * pp * tp > kMost)
    return InvalidArgument("dp * pp * tp must be at most {}, found {}", kMost, int64_t{dp} * pp * tp);
  if (int64_t{dp} * steps > kMost)
    return InvalidArgument("dp * steps must be at most {}, found {}", kMost, int64_t{dp} * steps);
  LS_RETURN_IF_ERROR(CheckTimes({{"forward", forward.value}, {"backward", backward.value}}, jitter));
  if (vpp > 1 && microbatches % pp != 0)
    return InvalidArgument("microbatches must be a multiple of pp = {} when vpp > 1, found {}", pp, microbatches);
  if (vpp > 1 && pp == 1) return InvalidArgument("vpp > 1 needs pp > 1, found pp = 1");
  return absl::OkStatus();
}

trace::StragglerMeta MetaOf(const JobShape& shape) {
  trace::StragglerMeta meta;
  meta.trial_name = "synthetic";
  meta.dp = shape.dp;
  meta.pp = shape.pp;
  meta.tp = shape.tp;
  meta.vpp = shape.vpp;
  meta.world_size = int64_t{shape.dp} * shape.pp * shape.tp;
  return meta;
}

absl::StatusOr<trace::StragglerRows> Generate(const JobShape& shape, const std::vector<Fault>& faults, uint64_t seed) {
  LS_RETURN_IF_ERROR(shape.Validate());
  for (const Fault& fault : faults) LS_RETURN_IF_ERROR(Fits(fault, shape));
  const Program program(shape);
  graph::OpGraphBuilder builder;
  for (size_t op = 0; op < program.ops().size(); ++op) builder.AddOp();
  LS_RETURN_IF_ERROR(trace::AddPipelineRules(program.Lane(), MetaOf(shape), builder));
  LS_ASSIGN_OR_RETURN(const graph::OpGraphBuilder::Built built,
                      builder.Build(FirstLanes(shape), [&](uint32_t op) { return trace::NameOf(program.ops()[op]); }));
  std::vector<JobOp> ops(program.ops().size());
  for (size_t op = 0; op < ops.size(); ++op) ops[built.number[op]] = program.ops()[op];

  Sampler sampler(shape, faults, built.graph, ops, seed);
  sampler.Sample();
  const std::vector<double> ideal(ops.size(), 0);
  const graph::Replay replay(built.graph, {sampler.durations, sampler.delays, ideal});
  graph::Replay::Scratch scratch;
  std::vector<double> ends(sampler.durations.size());
  replay.Ends(
      {graph::Selection(ops.size(), graph::Selection::kAll), graph::Selection(ops.size(), graph::Selection::kAll)},
      scratch, ends);
  return Rows(shape, built.graph, ops, Starts(built.graph, ends, sampler.delays), ends);
}

}  // namespace lockstep::synth
