// TCP between the nodes of one all-gather: connections that never wait longer than they may, and frames that say what
// they are, so that something else at the other end is told from a damaged byte.
//
// Frame: 40 bytes (magic "LSPROBE1", kind, sender, owner of the block, size of the ring as u32; bytes of the payload as
// u64; CRC32C of these 32 bytes, 4 bytes of zero), all little-endian, then the payload.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/file.h"
#include "lockstep/base/host.h"
#include "lockstep/base/status.h"
#include "lockstep/probe/budget.h"

namespace lockstep::probe {

enum class FrameKind : uint32_t { kHello = 1, kBlock = 2, kTrouble = 3 };

struct Frame {
  FrameKind kind = FrameKind::kHello;
  uint32_t sender = 0, owner = 0, nodes = 0;
  uint64_t bytes = 0;
};
inline constexpr size_t kFrameBytes = 40;
std::string EncodeFrame(const Frame& frame);
// kDataLoss: it is none, and what was found instead.
absl::StatusOr<Frame> DecodeFrame(std::span<const char> bytes);

// With its port, which is not 0.
absl::StatusOr<Endpoint> ParsePeer(const std::string& text);

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};
// Names are asked for in a thread that is left behind if no answer comes in time.
absl::StatusOr<Address> Resolve(const Endpoint& place, const Budget& budget);

// Non-blocking, as all sockets here.
absl::StatusOr<Fd> Listen(const Endpoint& place, const Budget& budget);
// A socket of ours that listens already. An error: it is none.
absl::StatusOr<Fd> TakeOver(int listener);
// Tries again until the budget is over: the other side may not have begun to listen.
absl::StatusOr<Fd> ConnectTo(const Endpoint& place, const Budget& budget);

// Waits until one is ready for what it says (as poll), or the budget is over. False: over.
bool WaitFor(std::span<pollfd> fds, const Budget& budget);
bool WaitFor(int fd, short events, const Budget& budget);

}  // namespace lockstep::probe
