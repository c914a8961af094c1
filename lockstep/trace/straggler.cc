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
};

}  // namespace

const char* OpTypeName(OpType type) { return kNames[static_cast<size_t>(type)]; }

std::optional<OpType> OpTypeFromName(std::string_view name) {
  const auto* found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<OpType>(found - kNames.begin());
}

bool IsCompute(OpType type) {
  return type == OpType::kForwardCompute || type == OpType::kBackwardCompute || type == OpType::kOptimizer ||
         type == OpType::kGc;
}

void StragglerRows::Add(const StragglerRow& row) {
  if (pieces.empty() || pieces.back().size() == kPiece) pieces.emplace_back().reserve(kPiece);
  pieces.back().push_back(row);
}

size_t StragglerRows::size() const { return pieces.empty() ? 0 : (pieces.size() - 1) * kPiece + pieces.back().size(); }

}  // namespace lockstep::trace
