// Sends and receives outside of collectives whose times are told, by the way that they went, and which of them belong
// to each other.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

// Sends of one rank and the receives of another, in one communicator, each by its launch.
struct Lane {
  std::vector<const trace::CommOp*> sends, receives;
};
using Lanes = std::map<std::tuple<uint32_t, int, int>, Lane>;  // by communicator, sender and receiver

inline constexpr int64_t kHeldUpNs = 50'000;  // less is no wait for anybody

inline int64_t EndOf(const trace::CommOp& op) { return op.created_ns + op.duration_ns; }

// Of those that ended by then and tell how long their rank waited for them. `log` must outlive it.
Lanes LanesOf(const trace::CommLog& log, int64_t until_ns);

// Those that belong to each other, though some of either may be lost: nothing is received before it is sent, and gloo
// sends nothing before the receiver is ready, so a send does not end before its receive begins. Clocks may be apart.
std::vector<std::pair<const trace::CommOp*, const trace::CommOp*>> PairsOf(const Lane& lane);

}  // namespace lockstep::detect
