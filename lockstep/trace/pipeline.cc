#include "lockstep/trace/pipeline.h"

#include <algorithm>
#include <array>
#include <map>

namespace lockstep::trace {
namespace {

using graph::Scope;

// A receive that is posted later than this behind the last compute of its direction, or a send that is over this long
// before the first one ends, was recorded but never launched.
constexpr float kNeverLaunched = 5e-5F;

// One way of the microbatches through the stages.
struct Direction {
  OpType compute, send, recv;
  int step;  // the next stage is this much further; the chunk behind has a number this much greater
};
constexpr Direction kForward{OpType::kForwardCompute, OpType::kForwardSend, OpType::kForwardRecv, 1};
constexpr Direction kBackward{OpType::kBackwardCompute, OpType::kBackwardSend, OpType::kBackwardRecv, -1};
constexpr std::array kDirections = {kForward, kBackward};

using Ops = std::vector<uint32_t>;

class Rules {
 public:
  Rules(const ReferenceLane& lane, const StragglerMeta& meta, graph::OpGraphBuilder& builder)
      : lane_(lane), meta_(meta), builder_(builder), by_stage_(static_cast<size_t>(meta.pp)) {
    for (uint32_t op = 0; op < lane.ops.size(); ++op)
      by_stage_[static_cast<size_t>(lane.ops[op].stage)][static_cast<size_t>(lane.ops[op].type)].push_back(op);
    for (auto& types : by_stage_)
      for (Ops& ops : types) SortByStart(ops);
    overlapped_ = std::any_of(by_stage_.begin(), by_stage_.end(), [](const auto& types) {
      return !types[static_cast<size_t>(OpType::kSeparateGradsAllReduce)].empty();
    });
  }

  absl::Status Add() {
    for (int stage = 0; stage < meta_.pp; ++stage) {
      AddStreams(stage);
      for (const Direction& direction : kDirections) LS_RETURN_IF_ERROR(AddTransfers(direction, stage));
      AddFirstBackward(stage);
      AddParameters(stage);
      LS_RETURN_IF_ERROR(AddTail(stage));
    }
    for (const Direction& direction : kDirections) LS_RETURN_IF_ERROR(PairTransfers(direction));
    AddCollectives();
    return absl::OkStatus();
  }

 private:
  const Ops& Of(OpType type, int stage) const {
    return by_stage_[static_cast<size_t>(stage)][static_cast<size_t>(type)];
  }

  Ops Joined(std::initializer_list<OpType> types, int stage) const {
    Ops ops;
    for (const OpType type : types) ops.insert(ops.end(), Of(type, stage).begin(), Of(type, stage).end());
    SortByStart(ops);
    return ops;
  }

  void SortByStart(Ops& ops) const {
    std::sort(ops.begin(), ops.end(), [this](uint32_t a, uint32_t b) {
      const auto key = [this](uint32_t op) {
        return std::tuple(lane_.starts[op], lane_.ops[op].sequence, std::string_view(OpTypeName(lane_.ops[op].type)));
      };
      return key(a) < key(b);
    });
  }

  void Chain(const Ops& ops) {
    for (size_t i = 1; i < ops.size(); ++i) builder_.AddDependency(ops[i - 1], ops[i]);
  }

  // What runs on one stream runs in order.
  void AddStreams(int stage) {
    Chain(Joined({OpType::kForwardCompute, OpType::kBackwardCompute}, stage));
    for (const Direction& direction : kDirections) {
      Chain(Of(direction.send, stage));
      Chain(Of(direction.recv, stage));
    }
    Chain(Joined({OpType::kParamsAllGather, OpType::kGradsReduceScatter}, stage));
  }

  bool IsLaunched(const Direction& direction, uint32_t op, int stage) const {
    const Ops& computes = Of(direction.compute, stage);
    if (computes.empty()) return false;
    if (lane_.ops[op].type == direction.recv) return lane_.starts[op] <= lane_.starts[computes.back()] + kNeverLaunched;
    return lane_.ends[op] >= lane_.ends[computes.front()] - kNeverLaunched;
  }

  // Whether another stage, or chunk, stands on that side of the compute.
  bool HasNeighbour(uint32_t compute, int step) const {
    const int neighbour = lane_.ops[compute].global_chunk + step;
    return neighbour >= 0 && neighbour < meta_.vpp * meta_.pp;
  }

  // (compute, transfer) in the order of both. Only at the ends of the pipeline may there be fewer transfers than
  // computes.
  absl::StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> Match(const Direction& direction, OpType type, int stage) {
    const Ops& computes = Of(direction.compute, stage);
    Ops transfers;
    for (const uint32_t op : Of(type, stage))
      if (IsLaunched(direction, op, stage)) transfers.push_back(op);
    std::vector<std::pair<uint32_t, uint32_t>> matched;
    if (transfers.empty()) return matched;
    const int step = type == direction.send ? direction.step : -direction.step;
    Ops partners = computes;
    if (partners.size() != transfers.size()) {
      partners.clear();
      for (const uint32_t op : computes)
        if (HasNeighbour(op, step)) partners.push_back(op);
    }
    const bool at_end = stage == 0 || stage == meta_.pp - 1;
    if (partners.size() != transfers.size() && at_end && computes.size() == transfers.size() + 1)
      partners.assign(computes.begin() + 1, computes.end());
    if (partners.size() != transfers.size())
      return InvalidArgument("stage {} has {} of {} for {} of {}: expected one for each, or none", stage,
                             transfers.size(), OpTypeName(type), computes.size(), OpTypeName(direction.compute));
    for (size_t i = 0; i < transfers.size(); ++i) {
      matched.emplace_back(partners[i], transfers[i]);
      if (HasNeighbour(partners[i], step)) paired_[{type, stage}].push_back(transfers[i]);
    }
    return matched;
  }

  // A receive comes before its compute and is posted behind the compute before; a send follows its compute.
  absl::Status AddTransfers(const Direction& direction, int stage) {
    const Ops& computes = Of(direction.compute, stage);
    LS_ASSIGN_OR_RETURN(const auto receives, Match(direction, direction.recv, stage));
    for (const auto& [compute, recv] : receives) {
      builder_.AddDependency(recv, compute);
      const auto place = std::find(computes.begin(), computes.end(), compute);
      if (place != computes.begin()) builder_.AddDependency(*(place - 1), recv);
    }
    LS_ASSIGN_OR_RETURN(const auto sends, Match(direction, direction.send, stage));
    for (const auto& [compute, send] : sends) builder_.AddDependency(compute, send);
    return absl::OkStatus();
  }

  // The first transfer backward is not posted before the warm-up of the pipeline has nearly passed.
  void AddFirstBackward(int stage) {
    const Ops computes = Joined({OpType::kForwardCompute, OpType::kBackwardCompute}, stage);
    const auto backward = std::find_if(computes.begin(), computes.end(),
                                       [this](uint32_t op) { return lane_.ops[op].type == OpType::kBackwardCompute; });
    if (backward - computes.begin() < 2) return;
    for (const OpType type : {OpType::kBackwardSend, OpType::kBackwardRecv})
      if (!Of(type, stage).empty()) builder_.AddDependency(*(backward - 2), Of(type, stage).front());
  }

  const uint32_t* FirstOfChunk(OpType type, int stage, int chunk) const {
    for (const uint32_t& op : Of(type, stage))
      if (lane_.ops[op].chunk == chunk) return &op;
    return nullptr;
  }

  // Parameters are gathered before the first forward of their chunk; where gradients are reduced beside the backward
  // pass, they are reduced behind the last backward of their chunk.
  void AddParameters(int stage) {
    for (const uint32_t gather : Of(OpType::kParamsAllGather, stage))
      if (const uint32_t* compute = FirstOfChunk(OpType::kForwardCompute, stage, lane_.ops[gather].chunk))
        builder_.AddDependency(gather, *compute);
    if (!overlapped_) return;
    for (int chunk = 0; chunk < meta_.vpp; ++chunk) {
      const uint32_t* reduce = FirstOfChunk(OpType::kGradsReduceScatter, stage, chunk);
      const Ops& backward = Of(OpType::kBackwardCompute, stage);
      const auto last =
          std::find_if(backward.rbegin(), backward.rend(), [&](uint32_t op) { return lane_.ops[op].chunk == chunk; });
      if (reduce != nullptr && last != backward.rend()) builder_.AddDependency(*last, *reduce);
    }
  }

  // What follows the last compute, one after the other.
  absl::Status AddTail(int stage) {
    const Ops computes = Joined({OpType::kForwardCompute, OpType::kBackwardCompute}, stage);
    if (computes.empty()) return InvalidArgument("stage {} has no compute", stage);
    Ops tail = {*std::max_element(computes.begin(), computes.end(),
                                  [this](uint32_t a, uint32_t b) { return lane_.ends[a] < lane_.ends[b]; })};
    const auto append = [&](OpType type) { tail.insert(tail.end(), Of(type, stage).begin(), Of(type, stage).end()); };
    append(OpType::kGc);
    append(OpType::kLayernormGradsAllReduce);
    append(OpType::kEmbeddingGradsAllReduce);
    append(overlapped_ ? OpType::kSeparateGradsAllReduce : OpType::kGradsReduceScatter);
    append(OpType::kOptimizerClipMainGrad);
    append(OpType::kOptimizer);
    Chain(tail);
    builder_.AddFinal(tail.back());
    const Ops& reduces = Of(OpType::kGradsReduceScatter, stage);
    const Ops& layernorm = Of(OpType::kLayernormGradsAllReduce, stage);
    if (overlapped_ && !reduces.empty() && !layernorm.empty())
      builder_.AddDependency(reduces.back(), layernorm.front());
    return absl::OkStatus();
  }

  // The n-th send of a stage meets the n-th receive of the next; one whose peer would be no stage is alone.
  absl::Status PairTransfers(const Direction& direction) {
    for (int stage = 0; stage < meta_.pp; ++stage) {
      const int next = (stage + direction.step + meta_.pp) % meta_.pp;
      const Ops& sends = paired_[{direction.send, stage}];
      const Ops& receives = paired_[{direction.recv, next}];
      if (sends.size() != receives.size())
        return InvalidArgument("stage {} has {} of {} and stage {} has {} of {}: expected as many", stage, sends.size(),
                               OpTypeName(direction.send), next, receives.size(), OpTypeName(direction.recv));
      for (size_t i = 0; i < sends.size(); ++i) builder_.AddGroup({sends[i], receives[i]}, Scope::kLane);
    }
    return absl::OkStatus();
  }

  // Data-parallel collectives wait for the other ranks of their stage, clipping for everybody, tied embeddings for the
  // other end of their own pipeline.
  void AddCollectives() {
    Ops clip, embedding;
    for (int stage = 0; stage < meta_.pp; ++stage) {
      for (int type = 0; type < kOpTypes; ++type)
        if (IsDataParallelComm(OpType(type)))
          for (const uint32_t op : Of(OpType(type), stage)) builder_.AddGroup({op}, Scope::kLaneSet);
      for (const uint32_t op : Of(OpType::kOptimizerClipMainGrad, stage)) clip.push_back(op);
      for (const uint32_t op : Of(OpType::kEmbeddingGradsAllReduce, stage)) embedding.push_back(op);
    }
    if (!clip.empty()) builder_.AddGroup(clip, Scope::kLaneSet);
    if (!embedding.empty()) builder_.AddGroup(embedding, Scope::kLane);
  }

  const ReferenceLane& lane_;
  const StragglerMeta& meta_;
  graph::OpGraphBuilder& builder_;
  std::vector<std::array<Ops, kOpTypes>> by_stage_;  // in the order of their starts
  std::map<std::pair<OpType, int>, Ops> paired_;     // transfers that have a peer
  bool overlapped_ = false;
};

}  // namespace

absl::Status AddPipelineRules(const ReferenceLane& lane, const StragglerMeta& meta, graph::OpGraphBuilder& builder) {
  return Rules(lane, meta, builder).Add();
}

std::string NameOf(const JobOp& op) {
  return fmt::format("{} {} of stage {}", OpTypeName(op.type), op.sequence, op.stage);
}

}  // namespace lockstep::trace
