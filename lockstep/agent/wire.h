// Messages between the starter and its neighbours (agent, zygote, store host): one JSON object per packet. Worker
// output travels as raw packets. Same machine, same build: no versioning here.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/packets.h"

namespace lockstep::agent {

using lockstep::AwaitPacket, lockstep::ConnectTo, lockstep::ListenAt, lockstep::MakeSocketPair, lockstep::Packet,
    lockstep::ReceivePacket, lockstep::SendPacket;

inline constexpr size_t kMostZygoteRequest = 192 << 10;  // as in python/lockstep/_packets.py

// Names the descriptor of the pipe into which a starter says that it is ready; whoever launched it has the other end.
inline constexpr char kReadyVariable[] = "LOCKSTEP_READY_FD";

// What workers print and nobody takes waits up to here: in the starter, and once more in who writes it to the console.
inline constexpr size_t kMostOutputKept = size_t{16} << 20;  // bytes
// Stands on the console in the place of what did not fit.
inline std::string LeftOut(uint64_t bytes) {
  return fmt::format("\nlockstep: {} bytes are left out here: nobody took them\n", bytes);
}

// Bytes of the workers' output that did not reach the log, or the console.
struct DroppedOutput {
  uint64_t log = 0, console = 0;
  bool operator==(const DroppedOutput&) const = default;
};

}  // namespace lockstep::agent
