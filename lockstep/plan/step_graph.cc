#include "lockstep/plan/step_graph.h"

#include <algorithm>
#include <optional>

#include "lockstep/graph/replay.h"
#include "lockstep/plan/schedule_order.h"
#include "lockstep/plan/step.h"

namespace lockstep::plan {
namespace {

constexpr int64_t kMostOps = 1'000'000;

class Builder {
 public:
  Builder(const Workload& work, const Rates& rates)
      : w_(work),
        times_(PredictStage(work, rates)),
        step_(PredictStep(work, rates)),
        microbatches_(work.Microbatches()),
        passes_(PassCount(), kNone),
        sent_(PassCount(), kNone),
        beside_(size_t(work.pp)) {}

  absl::StatusOr<StepGraph> Graph() {
    ops_.reserve(2 * PassCount());  // and as many transfers
    graph_.Reserve(2 * PassCount());
    for (int stage = 0; stage < w_.pp; ++stage) AddStage(stage);
    AddArrivals();
    LS_ASSIGN_OR_RETURN(graph::OpGraphBuilder::Built built,
                        graph_.Build({0, 1}, [&](uint32_t op) { return NameOf(ops_[op]); }));
    StepGraph step;
    step.graph = std::move(built.graph);
    step.schedule = w_.schedule;
    step.ops.resize(ops_.size());
    for (size_t op = 0; op < ops_.size(); ++op) step.ops[built.number[op]] = ops_[op];
    for (const uint32_t op : first_) step.first.push_back(built.number[op]);
    return step;
  }

 private:
  static constexpr uint32_t kNone = ~0U;

  // Which pass of the model one is: its stages are numbered from the first to the last, whoever has them.
  size_t PassOf(bool forward, int model_stage, int microbatch) const {
    return (size_t(forward ? ModelStages() : 0) + size_t(model_stage)) * size_t(microbatches_) + size_t(microbatch);
  }
  size_t PassCount() const { return 2 * size_t(ModelStages()) * size_t(microbatches_); }

  static std::string NameOf(const StepOp& op) {
    return fmt::format("{} {} of stage {}", StepOpName(op.kind), op.microbatch, op.stage);
  }
  int ModelStage(int stage, int chunk) const {
    if (w_.schedule == Schedule::kDualPipe) return chunk == 0 ? stage : w_.pp - 1 - stage;
    return chunk * w_.pp + stage;
  }
  int ModelStages() const { return w_.pp * w_.chunks; }

  double SecondsOf(Work work, int stage, int chunk) const {
    const int model_stage = ModelStage(stage, chunk);
    const Passes& layers = times_.stages[size_t(w_.schedule == Schedule::kDualPipe ? model_stage : stage)];
    const double head = model_stage == ModelStages() - 1 ? 1 : 0;
    const auto both = [&](double Passes::* pass) { return layers.*pass / w_.chunks + head * times_.head.*pass; };
    if (work == Work::kForward) return both(&Passes::forward);
    if (work == Work::kInput) return both(&Passes::input);
    if (work == Work::kWeight) return both(&Passes::weight);
    return both(&Passes::input) + both(&Passes::weight);
  }

  uint32_t Add(const StepOp& op, std::optional<uint32_t> after) {
    ops_.push_back(op);
    const uint32_t number = graph_.AddOp();
    if (after) graph_.AddDependency(*after, number);
    return number;
  }

  void AddStage(int stage) {
    const std::vector<Piece> order = OrderOf(w_, stage);
    std::vector<uint32_t> computed;
    std::optional<uint32_t> last;  // of the rank
    for (size_t i = 0; i < order.size(); ++i) {
      const bool is_pair = i + 1 < order.size() && order[i + 1].joined;
      computed.push_back(AddPass(order[i], is_pair ? &order[i + 1] : nullptr, stage, last));
      last = AddSend(order[i], stage, computed.back());
      if (is_pair) last = AddSend(order[++i], stage, *last);
    }
    first_.push_back(computed.front());
    AddEnd(stage, computed, *last);
  }

  uint32_t AddPass(const Piece& piece, const Piece* partner, int stage, std::optional<uint32_t> after) {
    constexpr StepOpKind kKinds[] = {StepOpKind::kForward, StepOpKind::kBackward, StepOpKind::kInput,
                                     StepOpKind::kWeight};
    StepOp op{.kind = kKinds[static_cast<size_t>(piece.work)],
              .stage = stage,
              .chunk = piece.chunk,
              .microbatch = piece.microbatch,
              .seconds = SecondsOf(piece.work, stage, piece.chunk)};
    if (partner != nullptr) {
      op.kind = StepOpKind::kPair;
      op.seconds += SecondsOf(partner->work, stage, partner->chunk) - w_.StageLayers(stage) * times_.overlap;
    }
    const uint32_t number = Add(op, after);
    for (const Piece* one : {&piece, partner}) {
      if (one == nullptr || one->work == Work::kWeight) continue;
      passes_[PassOf(one->work == Work::kForward, ModelStage(stage, one->chunk), one->microbatch)] = number;
    }
    return number;
  }

  // What holds the sender up; the receiver waits for its end. A pass at the end of the model goes nowhere.
  uint32_t AddSend(const Piece& piece, int stage, uint32_t after) {
    if (piece.work == Work::kWeight) return after;
    const bool forward = piece.work == Work::kForward;
    const int from = ModelStage(stage, piece.chunk), to = from + (forward ? 1 : -1);
    if (to < 0 || to == ModelStages()) return after;
    const int down = piece.chunk == 1 && w_.schedule == Schedule::kDualPipe ? -1 : 1;
    const int rank = (stage + (forward ? down : -down) + w_.pp) % w_.pp;
    const uint32_t send = Add({.kind = StepOpKind::kSend,
                               .stage = stage,
                               .chunk = piece.chunk,
                               .microbatch = piece.microbatch,
                               .to = rank,
                               .seconds = times_.transfer,
                               .bytes = times_.transfer_bytes},
                              after);
    sent_[PassOf(forward, from, piece.microbatch)] = send;
    return send;
  }

  // Each pass waits for what the one before it, of its microbatch, sent.
  void AddArrivals() {
    for (const bool forward : {false, true})
      for (int stage = 0; stage < ModelStages(); ++stage)
        for (int microbatch = 0; microbatch < microbatches_; ++microbatch) {
          const uint32_t op = passes_[PassOf(forward, stage, microbatch)];
          const int before = forward ? stage - 1 : stage + 1;
          if (before >= 0 && before < ModelStages()) AddWait(sent_[PassOf(forward, before, microbatch)], op);
          if (!forward) AddWait(passes_[PassOf(true, stage, microbatch)], op);
        }
  }
  void AddWait(uint32_t on, uint32_t pass) {
    graph_.AddDependency(on, pass);
    const Beside& beside = beside_[size_t(ops_[pass].stage)];
    if (beside.pass == pass) graph_.AddDependency(on, beside.op);
  }

  // Gradients go to the replicas beside the last passes, as far as the closed form hides them; then the optimizer.
  void AddEnd(int stage, const std::vector<uint32_t>& computed, uint32_t last) {
    const double exposed = step_[Part::kData], whole = std::max(times_.data, exposed), hidden = whole - exposed;
    std::optional<uint32_t> begin;  // the op behind which the first bucket begins to fill, at the earliest
    double covered = 0;
    size_t at = computed.size();
    while (at > 0 && covered < hidden) covered += ops_[computed[--at]].seconds;
    if (at > 0 && hidden > 0) begin = computed[at - 1];
    if (hidden == 0) begin = last;
    if (hidden > 0) beside_[size_t(stage)] = {computed[at], static_cast<uint32_t>(ops_.size())};
    StepOp op{.kind = StepOpKind::kBuckets, .stage = stage, .seconds = std::max(0.0, covered - hidden)};
    std::optional<uint32_t> reduce = begin;
    if (whole > 0) {
      if (op.seconds > 0) reduce = Add(op, begin);
      op.kind = StepOpKind::kReduce;
      op.seconds = whole;
      op.bytes = times_.data_bytes;
      reduce = Add(op, reduce);
    }
    const double rest = times_.host_link + step_[Part::kOptimizer] + step_[Part::kStep] + step_[Part::kStragglers];
    const uint32_t finish = Add({.kind = StepOpKind::kFinish, .stage = stage, .seconds = rest}, last);
    if (reduce) graph_.AddDependency(*reduce, finish);
    graph_.AddFinal(finish);
  }

  const Workload& w_;
  const StageTimes times_;
  const StepTime step_;
  graph::OpGraphBuilder graph_;
  std::vector<StepOp> ops_;
  std::vector<uint32_t> first_;
  const int microbatches_;
  std::vector<uint32_t> passes_, sent_;  // ops, by PassOf
  // Of each stage the op that begins with one of its last passes: the first bucket, or its way to the replicas.
  struct Beside {
    uint32_t pass = kNone, op = kNone;
  };
  std::vector<Beside> beside_;
};

}  // namespace

const char* StepOpName(StepOpKind kind) {
  constexpr const char* kNames[] = {"forward", "backward", "backward-input", "backward-weight", "forward+backward",
                                    "send",    "buckets",  "reduce",         "optimizer"};
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<StepGraph> BuildStepGraph(const Workload& workload, const Rates& rates) {
  LS_RETURN_IF_ERROR(CheckSchedule(workload));
  const int64_t passes = int64_t{workload.Microbatches()} * workload.pp * workload.chunks;
  if (4 * passes > kMostOps)
    return InvalidArgument(
        "{} microbatches on {} stages of {} chunks are more than a graph of {} ops holds: choose a "
        "larger mbs or a smaller --batch",
        workload.Microbatches(), workload.pp, workload.chunks, kMostOps);
  return Builder(workload, rates).Graph();
}

StepTimes Simulate(const StepGraph& step) {
  std::vector<double> ideal;
  ideal.reserve(step.ops.size());
  for (const StepOp& op : step.ops) ideal.push_back(op.seconds);
  const std::vector<float> measured(ideal.size());
  const graph::Replay replay(step.graph, {measured, {}, ideal});
  const graph::Scenario scenario{{ideal.size(), graph::Selection::kNone}, {ideal.size(), graph::Selection::kNone}};
  StepTimes times{{}, std::vector<double>(ideal.size()), {}};
  times.begin.reserve(ideal.size());
  graph::Replay::Scratch scratch;
  replay.Ends(scenario, scratch, times.end);
  std::vector<double> stage_end(step.first.size());
  for (size_t op = 0; op < ideal.size(); ++op) {
    times.begin.push_back(times.end[op] - ideal[op]);
    double& end = stage_end[static_cast<size_t>(step.ops[op].stage)];
    end = std::max(end, times.end[op]);
  }
  for (size_t stage = 0; stage < stage_end.size(); ++stage) {
    const double from = step.schedule == Schedule::kZeroBubble2p ? times.begin[step.first[stage]] : 0;
    times.total.value = std::max(times.total.value, stage_end[stage] - from);
  }
  return times;
}

}  // namespace lockstep::plan
