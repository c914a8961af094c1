// JSON packets with descriptors beside them, over SOCK_SEQPACKET unix sockets of one machine. Non-blocking but for
// connecting.
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

namespace lockstep {

struct Packet {
  std::string text;
  std::vector<Fd> fds;
  bool closed = false;  // the other side is gone; text is empty
};

inline constexpr size_t kMaxPacket = 1 << 20;
inline constexpr size_t kMaxPacketFds = 192;

// Both ends are close-on-exec; the first is non-blocking.
absl::StatusOr<std::pair<Fd, Fd>> MakeSocketPair();
// Listens on path (at most 107 bytes; replaces a stale socket), non-blocking.
absl::StatusOr<Fd> ListenAt(const std::string& path);
absl::StatusOr<Fd> ConnectTo(const std::string& path);

// Unavailable when the peer is gone or its queue is full, InvalidArgument where there is too much of it.
absl::Status SendPacket(int socket, std::string_view text, std::span<const int> fds = {});
// Reads one packet without blocking.
std::optional<Packet> ReceivePacket(int socket);
// The next packet. DeadlineExceeded: none came in time. Unavailable: the other side hung up.
absl::StatusOr<Packet> AwaitPacket(int socket, int limit_ms);

}  // namespace lockstep
