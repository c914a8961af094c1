// Which ops of a log are the same collective, of all its members: those that have ended, and tell how long they took.
//
// Cost: linear in the ops. Ops are gone through in their order, so that each rank's come from memory one after the
// other.
//
//   const Collectives collectives(log.ops);
//   std::vector<int> members(collectives.size());
//   for (size_t i = 0; i < log.ops.size(); ++i)
//     if (collectives.of(i) != Collectives::kNone) ++members[collectives.of(i)];
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::trace {

class Collectives {
 public:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  using Key = std::pair<uint32_t, int64_t>;  // communicator, sequence

  explicit Collectives(const std::vector<CommOp>& ops);

  size_t size() const { return keys_.size(); }
  // Of the op at this index, which collective it is: below size(), or kNone.
  uint32_t of(size_t op) const { return of_[op]; }
  const Key& KeyOf(uint32_t collective) const { return keys_[collective]; }
  size_t OpsOf(uint32_t collective) const { return ops_[collective]; }
  // All of them, by communicator and sequence.
  std::vector<uint32_t> InOrder() const;

 private:
  std::vector<uint32_t> of_;
  std::vector<Key> keys_;
  std::vector<size_t> ops_;
};

}  // namespace lockstep::trace
