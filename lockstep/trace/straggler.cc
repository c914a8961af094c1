#include "lockstep/trace/straggler.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "lockstep/base/large_pages.h"

namespace lockstep::trace {
namespace {

constexpr size_t kFirstPiece = 1 << 16, kPiece = 1 << 19;  // rows

constexpr std::array<std::string_view, kOpTypes> kNames = {
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

const char* OpTypeName(OpType type) { return kNames[static_cast<size_t>(type)].data(); }

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

bool IsTransfer(OpType type) { return IsSend(type) || type == OpType::kForwardRecv || type == OpType::kBackwardRecv; }

bool IsSend(OpType type) { return type == OpType::kForwardSend || type == OpType::kBackwardSend; }

bool IsDataParallelComm(OpType type) {
  return type == OpType::kParamsAllGather || type == OpType::kGradsReduceScatter ||
         type == OpType::kSeparateGradsAllReduce || type == OpType::kCollective;
}

void StragglerRows::Add(const StragglerRow& row) {
  if (pieces.empty()) {
    pieces.emplace_back().reserve(kFirstPiece);
  } else if (pieces.back().size() == pieces.back().capacity()) {
    ReserveOnLargePages(pieces.emplace_back(), kPiece);
  }
  pieces.back().push_back(row);
}

size_t StragglerRows::size() const {
  return std::accumulate(pieces.begin(), pieces.end(), size_t{0},
                         [](size_t sum, const auto& piece) { return sum + piece.size(); });
}

}  // namespace lockstep::trace
