#include "lockstep/probe/wire.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include "lockstep/base/slow_call.h"
#include "lockstep/client/client.h"

namespace lockstep::probe {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "LSPROBE1";
constexpr int kPollMs = 20;      // how soon a stop is noticed
constexpr Seconds kRetry{0.05};  // between two attempts to connect
constexpr size_t kSummed = 32;   // bytes of a frame that its checksum covers

std::string Printable(std::span<const char> bytes) {
  std::string text;
  for (const char byte : bytes.first(std::min<size_t>(bytes.size(), 16))) {
    text += byte >= ' ' && byte <= '~' ? std::string(1, byte) : fmt::format("\\x{:02x}", static_cast<uint8_t>(byte));
  }
  return text;
}

struct Found {
  int error = 0;
  Address address;
};

Found Ask(const Endpoint& place, int flags) {
  addrinfo hints{}, *list = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  Found found;
  found.error = getaddrinfo(place.host.c_str(), std::to_string(place.port.value_or(0)).c_str(), &hints, &list);
  if (found.error != 0) return found;
  std::memcpy(&found.address.storage, list->ai_addr, list->ai_addrlen);
  found.address.bytes = list->ai_addrlen;
  freeaddrinfo(list);
  return found;
}

// One attempt, within the budget.
absl::StatusOr<Fd> ConnectOnce(const Address& address, const std::string& what, const Budget& budget) {
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Errno(errno, "{}", what);
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.storage);
  if (connect(fd.get(), to, address.bytes) == 0) return fd;
  if (errno != EINPROGRESS) return Errno(errno, "{}", what);
  if (!WaitFor(fd.get(), POLLOUT, budget)) return Errno(ETIMEDOUT, "{}", what);
  int error = 0;
  socklen_t bytes = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return Errno(error, "{}", what);
  return fd;
}

}  // namespace

std::string EncodeFrame(const Frame& frame) {
  std::string text(kMagic);
  const auto append = [&](auto value) { text.append(reinterpret_cast<const char*>(&value), sizeof value); };
  append(static_cast<uint32_t>(frame.kind));
  append(frame.sender);
  append(frame.owner);
  append(frame.nodes);
  append(frame.bytes);
  append(ls_crc32c(0, text.data(), text.size()));
  append(uint32_t{0});
  return text;
}

absl::StatusOr<Frame> DecodeFrame(std::span<const char> bytes) {
  if (bytes.size() != kFrameBytes || std::string_view(bytes.data(), kMagic.size()) != kMagic)
    return DataLoss("it is no lockstep probe: expected \"{}\", found \"{}\"", kMagic, Printable(bytes));
  std::array<uint32_t, 4> words{};
  std::memcpy(words.data(), bytes.data() + kMagic.size(), sizeof words);
  Frame frame{.kind = static_cast<FrameKind>(words[0]), .sender = words[1], .owner = words[2], .nodes = words[3]};
  std::memcpy(&frame.bytes, bytes.data() + 24, sizeof frame.bytes);
  uint32_t crc = 0;
  std::memcpy(&crc, bytes.data() + kSummed, sizeof crc);
  if (const uint32_t expected = ls_crc32c(0, bytes.data(), kSummed); crc != expected)
    return DataLoss("a damaged frame: CRC32C {:08x}, expected {:08x}", crc, expected);
  if (words[0] < 1 || words[0] > 3) return DataLoss("a frame of unknown kind {}", words[0]);
  return frame;
}

absl::StatusOr<Endpoint> ParsePeer(const std::string& text) {
  std::optional<Endpoint> peer = ParseEndpoint(text);
  if (!peer || peer->port.value_or(0) == 0)
    return InvalidArgument(
        "expected HOST:PORT with a port from 1 to 65535, an IPv6 address in brackets ([fd00::1]:29600), found \"{}\"",
        text);
  return *std::move(peer);
}

absl::StatusOr<Address> Resolve(const Endpoint& place, const Budget& budget) {
  Found found = Ask(place, AI_NUMERICHOST | AI_NUMERICSERV);
  if (found.error == 0) return found.address;
  SlowCall<Found> call([place] { return Ask(place, AI_NUMERICSERV); });
  call.Begin();
  std::optional<Found> named;
  while (!(named = call.Await(Seconds{kPollMs * 1e-3}))) {
    if (budget.Over()) return Unavailable("nobody says in time where {} is", place.host);
  }
  found = *named;
  if (found.error != 0) return Unavailable("where {} is, is not known: {}", place.host, gai_strerror(found.error));
  return found.address;
}

absl::StatusOr<Fd> Listen(const Endpoint& place, const Budget& budget) {
  LS_ASSIGN_OR_RETURN(const Address address, Resolve(place, budget));
  Fd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Errno(errno, "listening at {}", EndpointText(place));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  constexpr int kBacklog = 16;
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return Errno(errno, "listening at {}", EndpointText(place));
  }
  return fd;
}

absl::StatusOr<Fd> TakeOver(int listener) {
  int listens = 0;
  socklen_t bytes = sizeof listens;
  if (getsockopt(listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0)
    return Errno(errno, "descriptor {}, which was to be a socket that listens", listener);
  if (listens == 0) return InvalidArgument("descriptor {}: expected a socket that listens", listener);
  if (fcntl(listener, F_SETFL, fcntl(listener, F_GETFL) | O_NONBLOCK) != 0) return Errno(errno, "fcntl");
  return Fd(listener);
}

absl::StatusOr<Fd> ConnectTo(const Endpoint& place, const Budget& budget) {
  LS_ASSIGN_OR_RETURN(const Address address, Resolve(place, budget));
  for (absl::Status last;;) {
    absl::StatusOr<Fd> connected = ConnectOnce(address, "connecting", budget);
    if (connected.ok()) return connected;
    // That time ran out says less than why an earlier attempt failed.
    if (budget.Over()) return last.ok() ? connected.status() : last;
    last = connected.status();
    WaitFor(-1, 0, budget.Of({std::min(kRetry.value, budget.Left().value)}));
  }
}

bool WaitFor(std::span<pollfd> fds, const Budget& budget) {
  while (!budget.Over()) {
    if (poll(fds.data(), fds.size(), kPollMs) > 0) return true;
  }
  return false;
}

bool WaitFor(int fd, short events, const Budget& budget) {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  return WaitFor({&one, 1}, budget);
}

}  // namespace lockstep::probe
