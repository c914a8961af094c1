// Messages between the starter and its neighbours (agent, zygote, store host): one JSON object per packet of a
// SOCK_SEQPACKET unix socket, with descriptors beside it. Worker output travels as raw packets. Same machine, same
// build: no versioning here.
//
//   LS_RETURN_IF_ERROR(SendPacket(fd, R"({"op":"kill"})"));
//   if (std::optional<Packet> packet = ReceivePacket(fd)) ...               // nullopt: nothing there now
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/status.h"

namespace lockstep::agent {

struct Packet {
  std::string text;
  std::vector<Fd> fds;
  bool closed = false;  // the other side is gone; text is empty
};

// Bytes of the workers' output that did not reach the log, or the console.
struct DroppedOutput {
  uint64_t log = 0, console = 0;
  bool operator==(const DroppedOutput&) const = default;
};

inline constexpr size_t kMaxPacket = 1 << 20;
inline constexpr size_t kMaxPacketFds = 192;

// Both ends are close-on-exec; the first is non-blocking.
absl::StatusOr<std::pair<Fd, Fd>> MakeSocketPair();
// Listens on path (at most 107 bytes; replaces a stale socket), non-blocking.
absl::StatusOr<Fd> ListenAt(const std::string& path);
absl::StatusOr<Fd> ConnectTo(const std::string& path);

// Unavailable when the peer is gone or its queue is full.
absl::Status SendPacket(int socket, std::string_view text, std::span<const int> fds = {});
// Reads one packet without blocking.
std::optional<Packet> ReceivePacket(int socket);

}  // namespace lockstep::agent
