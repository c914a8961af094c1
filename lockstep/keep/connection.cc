#include "lockstep/keep/connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "lockstep/base/host.h"

namespace lockstep::keep {
namespace {

constexpr int kSliceMs = 50;  // a stop is seen within it

absl::Status Stopped() { return MakeError(absl::StatusCode::kCancelled, "stopped"); }

// Nobody listens there: not one who is slow, or whose queue is full.
absl::Status ConnectError(int error) {
  const absl::Status status = Errno(error, "connect");
  return error == ECONNREFUSED ? NotFound("{}", Message(status)) : status;
}

absl::StatusOr<Fd> ConnectOnce(const std::string& number, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* to = nullptr;
  if (const int error = getaddrinfo(number.c_str(), std::to_string(port).c_str(), &hints, &to); error != 0)
    return Unavailable("{}", gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(to, &freeaddrinfo);
  Fd socket(::socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return Errno(errno, "socket");
  if (connect(socket.get(), to->ai_addr, to->ai_addrlen) != 0 && errno != EINPROGRESS) return ConnectError(errno);
  return socket;
}

}  // namespace

absl::StatusOr<Connection> Connection::To(const Address& address, std::stop_token stop) {
  const auto numbers = LookUp(address.host, kStall, stop);
  if (!numbers) return Unavailable("{}: no name server answered within {} s", address.host, kStall.value);
  absl::Status last = Unavailable("{}: no such host", address.host);
  size_t refused = 0;
  for (const std::string& number : *numbers) {
    absl::StatusOr<Connection> connection = ToOne(number, address.port, stop);
    if (connection.ok()) return connection;
    last = connection.status();
    refused += absl::IsNotFound(last) ? 1 : 0;
  }
  const bool nobody_listens = refused > 0 && refused == numbers->size();
  return MakeError(nobody_listens ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
                   fmt::format("{}:{}: {}", address.host, address.port, Message(last)));
}

absl::StatusOr<Connection> Connection::ToOne(const std::string& number, int port, std::stop_token stop) {
  LS_ASSIGN_OR_RETURN(Fd socket, ConnectOnce(number, port));
  const int fd = socket.get(), on = 1;
  Connection connection(std::move(socket), std::move(stop));
  LS_RETURN_IF_ERROR(connection.Await(POLLOUT, kStall));
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return ConnectError(error);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return connection;
}

absl::Status Connection::Await(short events, Seconds at_most) {
  for (int left = static_cast<int>(at_most.value * 1000); left > 0; left -= kSliceMs) {
    pollfd one{socket_.get(), events, 0};
    const int ready = poll(&one, 1, std::min(left, kSliceMs));
    if (stop_.stop_requested()) return Stopped();
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Errno(errno, "poll");
  }
  return Unavailable("nothing moved for {} s", at_most.value);
}

absl::Status Connection::AwaitMore() {
  while (true) {
    const absl::Status ready = Await(POLLIN, kStall);
    if (!absl::IsUnavailable(ready)) return ready;
  }
}

absl::Status Connection::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes = bytes.subspan(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EINTR) {
      LS_RETURN_IF_ERROR(Await(POLLOUT, kStall));
    } else {
      return Errno(errno, "sending");
    }
    if (stop_.stop_requested()) return Stopped();
  }
  return absl::OkStatus();
}

absl::Status Connection::Read(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got > 0) {
      bytes = bytes.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return Unavailable("the other side closed the connection");
    } else if (errno == EAGAIN || errno == EINTR) {
      LS_RETURN_IF_ERROR(Await(POLLIN, kStall));
    } else {
      return Errno(errno, "receiving");
    }
    if (stop_.stop_requested()) return Stopped();
  }
  return absl::OkStatus();
}

absl::StatusOr<Fd> ListenOnFreePort(bool loopback_only, int& port) {
  Fd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in6 six{};
  sockaddr_in four{};
  six.sin6_family = AF_INET6;
  four.sin_family = AF_INET;
  six.sin6_addr = in6addr_any;
  four.sin_addr.s_addr = htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  const int off = 0;
  const bool both = !loopback_only && socket.valid() &&
                    setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
                    bind(socket.get(), reinterpret_cast<sockaddr*>(&six), sizeof six) == 0;
  if (!both) {  // a machine without IPv6
    socket = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (bind(socket.get(), reinterpret_cast<sockaddr*>(&four), sizeof four) != 0) return Errno(errno, "bind");
  }
  if (listen(socket.get(), SOMAXCONN) != 0) return Errno(errno, "listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) return Errno(errno, "getsockname");
  // Both families have the port at the same place.
  port = ntohs(reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return socket;
}

}  // namespace lockstep::keep
