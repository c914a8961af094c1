#include "lockstep/trace/collectives.h"

#include <algorithm>
#include <numeric>

#include "absl/container/flat_hash_map.h"

namespace lockstep::trace {

Collectives::Collectives(const std::vector<CommOp>& ops) : of_(ops.size(), kNone) {
  absl::flat_hash_map<Key, uint32_t> known;
  for (size_t i = 0; i < ops.size(); ++i) {
    const CommOp& op = ops[i];
    if (op.direction != Direction::kCollective || op.state != OpState::kCompleted || op.duration_ns < 0) continue;
    const Key key{op.communicator, op.sequence};
    const auto [found, is_new] = known.try_emplace(key, static_cast<uint32_t>(keys_.size()));
    if (is_new) {
      keys_.push_back(key);
      ops_.push_back(0);
    }
    of_[i] = found->second;
    ++ops_[found->second];
  }
}

std::vector<uint32_t> Collectives::InOrder() const {
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return keys_[a] < keys_[b]; });
  return order;
}

}  // namespace lockstep::trace
