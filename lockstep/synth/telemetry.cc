#include "lockstep/synth/telemetry.h"

#include <algorithm>
#include <cmath>

#include "lockstep/synth/telemetry_job.h"
#include "lockstep/synth/times.h"

namespace lockstep::synth {
namespace {

using cluster::Dimension;
using FaultKind = TelemetryFaultKind;

constexpr int64_t kNever = -1;
constexpr double kMost = 1e5;  // seconds, and factors
constexpr int64_t kWarmUpSteps = 5;
constexpr int kMostLayers = 10'000;
constexpr double kEvaluationSpread = 0.3;

bool NeedsPeer(FaultKind kind) {
  return kind == FaultKind::kSlowLink || kind == FaultKind::kSlowBlock || kind == FaultKind::kSlowBlockOut ||
         kind == FaultKind::kSlowBlockIn;
}

bool IsOfNetwork(FaultKind kind) {
  return NeedsPeer(kind) || kind == FaultKind::kSlowSender || kind == FaultKind::kSlowReceiver;
}

absl::Status CheckFault(const TelemetryFault& fault, const TelemetryShape& shape) {
  const int ranks = shape.layout.WorldSize();
  const auto outside = [](int value, int size) { return value < 0 || value >= size; };
  const char* name = TelemetryFaultName(fault.kind);
  if (outside(fault.rank, ranks))
    return InvalidArgument("fault {}: rank is {}, expected 0 to {}", name, fault.rank, ranks - 1);
  if ((NeedsPeer(fault.kind) || fault.peer != -1) && (outside(fault.peer, ranks) || fault.peer == fault.rank))
    return InvalidArgument("fault {}: peer is {}, expected another rank than {} of 0 to {}", name, fault.peer,
                           fault.rank, ranks - 1);
  if (fault.port != -1 && outside(fault.port, shape.ports))
    return InvalidArgument("fault {}: port is {}, expected 0 to {}", name, fault.port, shape.ports - 1);
  if (fault.factor > kMost || !(fault.seconds.value <= kMost))
    return InvalidArgument("fault {}: factor and seconds must be at most {:g}", name, kMost);
  if (fault.until <= fault.from)
    return InvalidArgument("fault {}: until must be after from, found {:g} and {:g} s", name, fault.until.value,
                           fault.from.value);
  const bool of_gradients = fault.kind == FaultKind::kLostMessage || fault.kind == FaultKind::kDeadlock ||
                            fault.kind == FaultKind::kMismatch || fault.kind == FaultKind::kSkipped;
  if (of_gradients && shape.layout.Size(Dimension::kDpCp) < 2)
    return InvalidArgument("fault {}: strikes where gradients are reduced; expected cp or dp of at least 2", name);
  const bool needs_every = fault.kind == FaultKind::kCheckpoint || fault.kind == FaultKind::kEvaluation;
  if (needs_every && fault.every.value <= 0) return InvalidArgument("fault {}: needs every, in seconds, above 0", name);
  return absl::OkStatus();
}

}  // namespace

absl::Status TelemetryShape::Validate() const {
  LS_RETURN_IF_ERROR(layout.Validate());
  if (layout.vpp != 1) return InvalidArgument("telemetry is made for vpp 1, found {}", layout.vpp);
  if (layout.WorldSize() < 2) return InvalidArgument("telemetry needs at least 2 ranks, found 1");
  for (const auto& [name, value] :
       {std::pair{"ports", ports}, {"ranks per host", ranks_per_host}, {"microbatches", microbatches}})
    if (value < 1) return InvalidArgument("{} must be at least 1, found {}", name, value);
  if (sharded_layers < 0 || sharded_layers > kMostLayers)
    return InvalidArgument("sharded layers must be 0 to {}, found {}", kMostLayers, sharded_layers);
  LS_RETURN_IF_ERROR(CheckTimes({{"forward", forward.value},
                                 {"backward", backward.value},
                                 {"optimizer", optimizer.value},
                                 {"clock offset", clock_offset.value}},
                                jitter));
  if (forward.value + backward.value <= 0) return InvalidArgument("forward and backward must take some time, found 0");
  if (ports > 255) return InvalidArgument("ports must be at most 255, found {}", ports);
  return absl::OkStatus();
}

Telemetry::Telemetry(std::unique_ptr<Job> job) : job_(std::move(job)) {}
Telemetry::Telemetry(Telemetry&&) noexcept = default;
Telemetry& Telemetry::operator=(Telemetry&&) noexcept = default;
Telemetry::~Telemetry() = default;

absl::StatusOr<Telemetry> Telemetry::Create(const TelemetryShape& shape, const std::vector<TelemetryFault>& faults,
                                            uint64_t seed) {
  LS_RETURN_IF_ERROR(shape.Validate());
  for (const TelemetryFault& fault : faults) {
    LS_RETURN_IF_ERROR(CheckFault(fault, shape));
  }
  return Telemetry(std::make_unique<Job>(shape, faults, seed));
}

void Telemetry::Run(Seconds since_begin) { job_->Run(since_begin); }
std::vector<trace::TrailSnapshot> Telemetry::Take() { return job_->Take(); }
bool Telemetry::IsStuck() const { return job_->IsStuck(); }
std::vector<TelemetryFault> Telemetry::Unmet() const { return job_->Unmet(); }

// ---- who is who ----

Telemetry::Job::Job(const TelemetryShape& shape, const std::vector<TelemetryFault>& faults, uint64_t seed)
    : shape_(shape), faults_(faults), met_(faults.size()), chance_(seed), end_(kBegin) {
  const cluster::Layout& layout = shape_.layout;
  ranks_.resize(static_cast<size_t>(layout.WorldSize()));
  of_stage_.resize(static_cast<size_t>(layout.pp));
  length_.assign(static_cast<size_t>(layout.dp), 1);
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const cluster::Coordinates at = layout.CoordinatesOf(RankId(static_cast<int>(i)));
    Rank& rank = ranks_[i];
    rank.now = kBegin;
    rank.host = i / static_cast<size_t>(shape_.ranks_per_host);
    rank.replica = static_cast<size_t>(at.dp);
    rank.group.fill(-1);
    of_stage_[static_cast<size_t>(at.pp)].push_back(i);
  }
  clock_offset_.resize(ranks_.back().host + 1);
  for (int64_t& offset : clock_offset_)
    offset = static_cast<int64_t>(shape_.clock_offset.value * 1e9 * chance_.Normal());
  std::vector<RankId> all;
  all.reserve(ranks_.size());
  for (size_t i = 0; i < ranks_.size(); ++i) all.emplace_back(static_cast<int>(i));
  AddGroups(kWorld, {all});
  AddGroups(kData, layout.Groups(Dimension::kDpCp));
  AddGroups(kTensor, layout.Groups(Dimension::kTp));
  AddGroups(kPipeline, layout.Groups(Dimension::kPp));
  AddGroups(kExpert, layout.Groups(Dimension::kEp));
  AddGroups(kContext, layout.Groups(Dimension::kCp));
  OrderSchedule();
}

void Telemetry::Job::AddGroups(Kind kind, const std::vector<std::vector<RankId>>& groups) {
  for (const std::vector<RankId>& members : groups) {
    if (members.size() < 2) continue;
    Group group{(uint64_t{kind} + 1) << 32 | groups_.size(), kind, {}};
    for (const RankId member : members) {
      Rank& rank = ranks_[static_cast<size_t>(member.value())];
      rank.group[kind] = static_cast<int>(groups_.size());
      rank.place[kind] = static_cast<int>(group.members.size());
      group.members.push_back(static_cast<size_t>(member.value()));
    }
    of_kind_[kind].push_back(groups_.size());
    groups_.push_back(std::move(group));
  }
}

void Telemetry::Job::OrderSchedule() {
  const int pp = shape_.layout.pp;
  std::vector<std::vector<Compute>> of_stage;
  of_stage.reserve(static_cast<size_t>(pp));
  for (int stage = 0; stage < pp; ++stage) of_stage.push_back(Schedule(stage, pp, 1, shape_.microbatches));
  std::vector<size_t> next(of_stage.size());
  std::vector<std::array<int, 2>> done(of_stage.size());  // backward and forward microbatches
  const size_t total = of_stage.size() * of_stage.front().size();
  while (schedule_.size() < total) {
    for (int stage = 0; stage < pp; ++stage) {
      const auto own = static_cast<size_t>(stage);
      while (next[own] < of_stage[own].size()) {
        const Compute& compute = of_stage[own][next[own]];
        const int from = compute.forward ? stage - 1 : stage + 1;
        if (from >= 0 && from < pp && done[static_cast<size_t>(from)][compute.forward] <= compute.microbatch) break;
        schedule_.emplace_back(stage, compute);
        ++done[own][compute.forward];
        ++next[own];
      }
    }
  }
}

// ---- a step ----

Seconds Telemetry::Job::SinceBegin(int64_t now) const { return ToSeconds(Nanos{now - kBegin}); }

const TelemetryFault* Telemetry::Job::Active(FaultKind kind, size_t rank) const {
  for (const TelemetryFault& fault : faults_)
    if (fault.kind == kind && static_cast<size_t>(fault.rank) == rank && fault.IsOn(SinceBegin(ranks_[rank].now)))
      return &fault;
  return nullptr;
}

std::vector<TelemetryFault> Telemetry::Job::Unmet() const {
  std::vector<TelemetryFault> unmet;
  for (size_t i = 0; i < faults_.size(); ++i)
    if (IsOfNetwork(faults_[i].kind) && !met_[i]) unmet.push_back(faults_[i]);
  return unmet;
}

void Telemetry::Job::Run(Seconds since_begin) {
  const int64_t until = kBegin + ToNanos(since_begin).value;
  // Who is stuck holds up whoever waits for it, some of them not before the step after.
  while (end_ < until && stuck_ < ranks_.size()) {
    Step();
    for (const Rank& rank : ranks_) end_ = std::max(end_, rank.now);
  }
  end_ = std::max(end_, until);
}

void Telemetry::Job::Step() {
  BeginStep();
  for (const auto& [stage, compute] : schedule_) Microbatch(stage, compute);
  Gradients();
  ++step_;
}

void Telemetry::Job::PauseAll(Seconds seconds, double spread) {
  for (Rank& rank : ranks_) rank.now += ToNanos(seconds * chance_.Spread(spread)).value;
}

void Telemetry::Job::BeginStep() {
  for (Rank& rank : ranks_)
    for (std::vector<int64_t>& sent : rank.sent) sent.assign(static_cast<size_t>(shape_.microbatches), kNever);
  std::fill(length_.begin(), length_.end(), 1);
  const Seconds now = SinceBegin(ranks_.front().now);
  const double took = step_ == 0 ? 0 : now.value / static_cast<double>(step_);
  for (const TelemetryFault& fault : faults_) {
    const auto passes = [&](double period) {  // since the step before
      return std::floor(now.value / period) > std::floor(std::max(0.0, now.value - took) / period);
    };
    if (fault.kind == FaultKind::kLengths && fault.IsOn(now))
      for (double& length : length_) length *= chance_.Spread(fault.factor);
    if (fault.kind == FaultKind::kWarmUp && step_ < kWarmUpSteps)
      for (double& length : length_) length *= 1 + chance_.Uniform() * (fault.factor - 1);
    const bool repeats = now >= fault.from && now < fault.until && passes(fault.every.value);
    if (fault.kind == FaultKind::kCheckpoint && repeats) PauseAll(fault.seconds, 0.05);
    if (fault.kind == FaultKind::kEvaluation && repeats) PauseAll(fault.seconds, kEvaluationSpread);
    if (fault.kind == FaultKind::kPause && now >= fault.from && now.value - took < fault.from.value)
      PauseAll(fault.seconds, 0);
  }
}

void Telemetry::Job::Work(size_t index, Seconds seconds) {
  Rank& rank = ranks_[index];
  if (rank.stuck) return;
  const Seconds now = SinceBegin(rank.now);
  double factor = chance_.Spread(shape_.jitter);
  Seconds pause{0};
  const auto computes = static_cast<double>(2 * shape_.microbatches * std::max(1, shape_.sharded_layers) + 1);
  for (const TelemetryFault& fault : faults_) {
    if (!fault.IsOn(now)) continue;
    const bool own = static_cast<size_t>(fault.rank) == index;
    const bool turn = static_cast<size_t>(step_) % ranks_.size() == index;
    if ((fault.kind == FaultKind::kSlowRank && own) || (fault.kind == FaultKind::kRotating && turn) ||
        fault.kind == FaultKind::kEverybody)
      factor *= fault.factor;
    if (fault.kind == FaultKind::kGc && chance_.Uniform() < fault.share / computes) pause += fault.seconds;
    if (fault.kind == FaultKind::kStopped && own) {
      rank.stopped = true;
      return Stick(index, nullptr);
    }
  }
  rank.now += ToNanos(seconds * factor + pause).value;
}

void Telemetry::Job::Microbatch(int stage, const Compute& compute) {
  const std::vector<size_t>& ranks = of_stage_[static_cast<size_t>(stage)];
  const int from = compute.forward ? stage - 1 : stage + 1, to = compute.forward ? stage + 1 : stage - 1;
  const auto exists = [&](int other) { return other >= 0 && other < shape_.layout.pp; };
  const Seconds seconds = compute.forward ? shape_.forward : shape_.backward;
  for (const size_t rank : ranks) {
    if (exists(from)) Receive(rank, compute);
    if (shape_.sharded_layers == 0) Work(rank, seconds * length_[ranks_[rank].replica]);
  }
  if (shape_.sharded_layers > 0) WorkOnShards(stage, compute.forward, seconds * (1.0 / shape_.sharded_layers));
  const uint8_t of_context = compute.forward ? LS_ALL_GATHER : LS_REDUCE_SCATTER;
  for (const auto& [kind, function] :
       {std::pair<Kind, uint8_t>{kTensor, LS_ALL_REDUCE}, {kContext, of_context}, {kExpert, LS_ALL_TO_ALL}})
    OfStage(stage, kind, function, shape_.activations);
  if (exists(to))
    for (const size_t rank : ranks) Send(rank, compute);
}

// What belongs to no layer, as the embedding, is gathered first and reduced last.
void Telemetry::Job::WorkOnShards(int stage, bool forward, Seconds of_layer) {
  const int layers = shape_.sharded_layers;
  const Bytes layer{shape_.gradients.value / (layers + 2)}, others{2 * layer.value};
  if (forward) OfStage(stage, kData, LS_ALL_GATHER, others);
  for (int i = 0; i < layers; ++i) {
    OfStage(stage, kData, LS_ALL_GATHER, layer);
    for (const size_t rank : of_stage_[static_cast<size_t>(stage)])
      Work(rank, of_layer * length_[ranks_[rank].replica]);
    if (!forward) OfStage(stage, kData, LS_REDUCE_SCATTER, layer);
  }
  if (!forward) OfStage(stage, kData, LS_REDUCE_SCATTER, others);
}

void Telemetry::Job::OfStage(int stage, Kind kind, uint8_t function, Bytes bytes) {
  const std::vector<size_t>& ranks = of_stage_[static_cast<size_t>(stage)];
  for (const size_t group : of_kind_[kind])
    if (std::ranges::binary_search(ranks, groups_[group].members.front())) Collective(groups_[group], function, bytes);
}

void Telemetry::Job::Gradients() {
  const auto all = [&](Kind kind, uint8_t function, Bytes bytes) {
    for (const size_t group : of_kind_[kind]) Collective(groups_[group], function, bytes);
  };
  // Who does it the other way round is there before the others have begun.
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (!ranks_[rank].stuck && ranks_[rank].group[kData] >= 0 && Active(FaultKind::kDeadlock, rank) != nullptr) {
      const ls_record in = Launch(rank, kWorld, LS_ALL_REDUCE, Bytes{4});
      Stick(rank, &in);
    }
  const bool sharded = shape_.sharded_layers > 0;
  const bool in_one = sharded && shape_.layout.Size(Dimension::kDpCp) == shape_.layout.WorldSize();
  if (!sharded) all(kData, LS_REDUCE_SCATTER, shape_.gradients);
  all(in_one ? kData : kWorld, LS_ALL_REDUCE, Bytes{4});
  for (size_t rank = 0; rank < ranks_.size(); ++rank) Work(rank, shape_.optimizer);
  if (!sharded) all(kData, LS_ALL_GATHER, shape_.gradients);
}

}  // namespace lockstep::synth
