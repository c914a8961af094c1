// JSON packets with descriptors beside them, over SOCK_SEQPACKET unix sockets of one machine. Non-blocking but for
// connecting.
//
//   LS_RETURN_IF_ERROR(SendPacket(fd, R"({"op":"kill"})"));
//   if (std::optional<Packet> packet = ReceivePacket(fd)) ...               // nullopt: nothing there now
#pragma once

#include <sys/types.h>

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
  bool cut = false;     // there was more of it than kMaxPacket; text is empty
};

inline constexpr size_t kMaxPacket = 1 << 20;
inline constexpr size_t kMaxPacketFds = 192;

// Both ends are close-on-exec; the first is non-blocking.
absl::StatusOr<std::pair<Fd, Fd>> MakeSocketPair();
// Listens on path (at most 107 bytes; replaces a stale socket), non-blocking.
absl::StatusOr<Fd> ListenAt(const std::string& path);
absl::StatusOr<Fd> ConnectTo(const std::string& path);
// The process at the other end, by the kernel's word. 0: it has no number here, or that can't be told.
pid_t PeerOf(int socket);

// Unavailable when the peer is gone or its queue is full, InvalidArgument where there is too much of it.
absl::Status SendPacket(int socket, std::string_view text, std::span<const int> fds = {});
// Reads one packet without blocking.
std::optional<Packet> ReceivePacket(int socket);
// The next packet. DeadlineExceeded: none came in time. Unavailable: the other side hung up.
absl::StatusOr<Packet> AwaitPacket(int socket, int limit_ms);

// A text of any size: a large one lies in a file in memory whose descriptor is sent, for how much a packet may have is
// the kernel's to say (net.core.wmem_max). Errors as of SendPacket, and where there is no room for the file.
absl::Status SendText(int socket, std::string_view text);
// What a packet of SendText says. DataLoss: it did not come whole.
absl::StatusOr<std::string> TextOf(const Packet& packet);

}  // namespace lockstep
