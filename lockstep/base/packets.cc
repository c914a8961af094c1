#include "lockstep/base/packets.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/base/memory_file.h"

namespace lockstep {
namespace {

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("{}: a socket path may have {} bytes, this one has {}; choose a shorter directory", path,
                           sizeof(address.sun_path) - 1, path.size());
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

void EnlargeBuffers(int fd) {
  const int bytes = 4 << 20;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

std::vector<Fd> TakeFds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::vector<int> raw(count);
    std::memcpy(raw.data(), CMSG_DATA(header), count * sizeof(int));
    for (const int fd : raw) fds.emplace_back(fd);
  }
  return fds;
}

constexpr size_t kMostInPacket = 64 << 10;
// To whom does not look for a file.
constexpr char kInFile[] = R"({"error":"this is too large for a packet, and lies in the file beside it"})";

}  // namespace

absl::StatusOr<std::pair<Fd, Fd>> MakeSocketPair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return Errno(errno, "socketpair");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  EnlargeBuffers(ends[0]);
  EnlargeBuffers(ends[1]);
  return std::pair<Fd, Fd>(Fd(ends[0]), Fd(ends[1]));
}

absl::StatusOr<Fd> ListenAt(const std::string& path) {
  // Whoever finds `path` finds somebody who listens, also while that is replaced.
  const std::string before = path + "~";
  LS_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(before));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  unlink(before.c_str());
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return Errno(errno, "bind {}", before);
  if (listen(fd.get(), 128) != 0) return Errno(errno, "listen {}", before);
  if (rename(before.c_str(), path.c_str()) != 0) return Errno(errno, "{}", path);
  return fd;
}

pid_t PeerOf(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

absl::StatusOr<Fd> ConnectTo(const std::string& path) {
  LS_ASSIGN_OR_RETURN(const sockaddr_un address, AddressOf(path));
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Errno(errno, "a socket for {}", path);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return Errno(errno, "connect to {}", path);
  }
  fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  EnlargeBuffers(fd.get());
  return fd;
}

absl::Status SendPacket(int socket, std::string_view text, std::span<const int> fds) {
  iovec part{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))] = {};
  if (!fds.empty()) {
    if (fds.size() > kMaxPacketFds)
      return InvalidArgument("{} descriptors in one packet, at most {}", fds.size(), kMaxPacketFds);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  while (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    if (errno == EMSGSIZE) return InvalidArgument("a packet of {} bytes is too large", text.size());
    if (errno != EINTR) return Errno(errno, "send");
  }
  return absl::OkStatus();
}

std::optional<Packet> ReceivePacket(int socket) {
  static thread_local std::string buffer(kMaxPacket, '\0');
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  Packet packet;
  packet.closed = got <= 0;  // a reset peer is a gone peer
  packet.cut = (message.msg_flags & MSG_TRUNC) != 0;
  if (got > 0 && !packet.cut) packet.text.assign(buffer.data(), static_cast<size_t>(got));
  packet.fds = TakeFds(message);
  return packet;
}

absl::StatusOr<Packet> AwaitPacket(int socket, int limit_ms) {
  pollfd wait{socket, POLLIN, 0};
  if (poll(&wait, 1, limit_ms) != 1)
    return MakeError(absl::StatusCode::kDeadlineExceeded, fmt::format("no answer within {} ms", limit_ms));
  std::optional<Packet> packet = ReceivePacket(socket);
  if (!packet || packet->closed) return Unavailable("the other side hung up");
  return *std::move(packet);
}

absl::Status SendText(int socket, std::string_view text) {
  if (text.size() <= kMostInPacket) return SendPacket(socket, text);
  LS_ASSIGN_OR_RETURN(const Fd file, MemoryFile("lockstep-text", text));
  return SendPacket(socket, kInFile, std::array{file.get()});
}

absl::StatusOr<std::string> TextOf(const Packet& packet) {
  if (packet.cut) return DataLoss("a packet of more than {} bytes", kMaxPacket);
  return packet.fds.empty() ? packet.text : ReadToEnd(packet.fds.front().get(), "a text in a file");
}

}  // namespace lockstep
