#include "lockstep/plan/step_trace.h"

#include <set>

#include "lockstep/trace/chakra_writer.h"
#include "lockstep/trace/perfetto.h"

namespace lockstep::plan {
namespace {

constexpr double kMicros = 1e6;
constexpr int kThreads = 3;  // of a stage

int ThreadOf(const StepOp& op) {
  const int kind = RunsBeside(op) ? 2 : op.kind == StepOpKind::kSend ? 1 : 0;
  return op.stage * kThreads + kind;
}

std::string NameOf(const StepOp& op) {
  std::string name = StepOpName(op.kind);
  if (op.microbatch >= 0) name += fmt::format(" {}", op.microbatch);
  if (op.chunk > 0) name += fmt::format(" of chunk {}", op.chunk);
  return name;
}

// One rank's part of the graph; ids are those of the graph, and of receives come behind them.
class RankOps {
 public:
  RankOps(const StepGraph& step, int stage) : step_(step), stage_(stage) {}

  std::vector<trace::ChakraOp> Ops() {
    for (uint32_t op = 0; op < step_.ops.size(); ++op)
      if (step_.ops[op].stage == stage_) Add(op);
    return std::move(all_);
  }

 private:
  using Type = trace::ChakraOp::Type;

  static trace::ChakraOp NodeOf(const StepOp& one, uint64_t id, std::string name) {
    trace::ChakraOp node;
    node.id = id;
    node.name = std::move(name);
    node.duration_s = one.seconds;
    node.bytes = static_cast<int64_t>(one.bytes);
    return node;
  }

  void Add(uint32_t op) {
    const StepOp& one = step_.ops[op];
    trace::ChakraOp node = NodeOf(one, op, NameOf(one));
    for (const uint32_t before : step_.graph.DependenciesOf(op))
      node.waits_for.push_back(step_.ops[before].stage == stage_ ? before : Receive(before));
    if (one.kind == StepOpKind::kSend) SetPair(node, Type::kSend, op);
    if (one.kind == StepOpKind::kReduce) {
      node.type = Type::kCollective;
      node.group = fmt::format("replicas of stage {}", stage_);
    }
    all_.push_back(std::move(node));
  }

  uint64_t Receive(uint32_t send) {
    const StepOp& one = step_.ops[send];
    trace::ChakraOp node = NodeOf(one, step_.ops.size() + send, fmt::format("receive {}", one.microbatch));
    if (!received_.insert(send).second) return node.id;
    SetPair(node, Type::kReceive, send);
    all_.push_back(node);
    return node.id;
  }

  // Each message has a tag of its own: the number of the op that sends it.
  void SetPair(trace::ChakraOp& node, Type type, uint32_t send) const {
    node.type = type;
    node.source = step_.ops[send].stage;
    node.destination = step_.ops[send].to;
    node.tag = static_cast<int>(send);
  }

  const StepGraph& step_;
  const int stage_;
  std::vector<trace::ChakraOp> all_;
  std::set<uint32_t> received_;  // sends of others that are received: a pass, and what begins beside it, wait for one
};

}  // namespace

absl::Status WriteTimeline(const StepGraph& step, const StepTimes& times, const std::string& path) {
  LS_ASSIGN_OR_RETURN(trace::TimelineWriter timeline, trace::TimelineWriter::Create(path));
  timeline.NameProcess(0, "one pipeline, predicted");
  for (int stage = 0; stage < std::ssize(step.first); ++stage) {
    constexpr const char* kNames[kThreads] = {"computes", "sends", "gradients"};
    for (int i = 0; i < kThreads; ++i)
      timeline.NameThread(0, stage * kThreads + i, fmt::format("stage {}, {}", stage, kNames[i]));
  }
  for (size_t op = 0; op < step.ops.size(); ++op) {
    const StepOp& one = step.ops[op];
    const std::string name = NameOf(one);
    timeline.AddSlice({.process = 0,
                       .thread = ThreadOf(one),
                       .name = name,
                       .begin_us = times.begin[op] * kMicros,
                       .duration_us = one.seconds * kMicros,
                       .args = {}});
  }
  return timeline.Finish();
}

absl::StatusOr<std::vector<std::string>> WriteChakraTraces(const StepGraph& step, const std::string& path) {
  std::vector<std::string> paths;
  const std::string stem = path.substr(0, path.rfind(".et"));
  for (int stage = 0; stage < std::ssize(step.first); ++stage) {
    paths.push_back(fmt::format("{}.{}.et", stem, stage));
    LS_RETURN_IF_ERROR(trace::WriteChakra(paths.back(), RankOps(step, stage).Ops()));
  }
  return paths;
}

}  // namespace lockstep::plan
