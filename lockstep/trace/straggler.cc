#include "lockstep/trace/straggler.h"

#include <algorithm>
#include <array>

namespace lockstep::trace {
namespace {

constexpr size_t kPiece = 1 << 16;  // rows

constexpr std::array<const char*, kOpTypes> kNames = {
    "forward-compute",
    "backward-compute",
    "forward-send",
    "forward-recv",
    "backward-send",
    "backward-recv",
    "params-all-gather",
    "grads-reduce-scatter",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
    "optimizer",
    "gc",
    "compute",
    "collective",
};

}  // namespace

const char* OpTypeName(OpType type) { return kNames[static_cast<size_t>(type)]; }

std::optional<OpType> OpTypeFromName(std::string_view name) {
  const auto* end = kNames.begin() + kSchemaTypes;
  const auto* found = std::find(kNames.begin(), end, name);
  if (found == end) return std::nullopt;
  return static_cast<OpType>(found - kNames.begin());
}

std::string_view KindName(OpType type) {
  switch (type) {
    case OpType::kForwardSend:
    case OpType::kForwardRecv:
      return "forward-pp-comm";
    case OpType::kBackwardSend:
    case OpType::kBackwardRecv:
      return "backward-pp-comm";
    default:
      return OpTypeName(type);
  }
}

bool IsPass(OpType type) {
  return type == OpType::kForwardCompute || type == OpType::kBackwardCompute || type == OpType::kSegment;
}

bool IsCompute(OpType type) { return IsPass(type) || type == OpType::kOptimizer || type == OpType::kGc; }

bool IsTransfer(OpType type) {
  return type == OpType::kForwardSend || type == OpType::kForwardRecv || type == OpType::kBackwardSend ||
         type == OpType::kBackwardRecv;
}

bool IsDataParallelComm(OpType type) {
  return type == OpType::kParamsAllGather || type == OpType::kGradsReduceScatter ||
         type == OpType::kSeparateGradsAllReduce || type == OpType::kCollective;
}

void StragglerRows::Add(const StragglerRow& row) {
  if (pieces.empty() || pieces.back().size() == kPiece) pieces.emplace_back().reserve(kPiece);
  pieces.back().push_back(row);
}

size_t StragglerRows::size() const { return pieces.empty() ? 0 : (pieces.size() - 1) * kPiece + pieces.back().size(); }

}  // namespace lockstep::trace
