#include "lockstep/serve/listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace lockstep::serve {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return InvalidArgument("cannot serve on host \"{}\": {}", host, gai_strerror(error));
  return Addresses(found, &freeaddrinfo);
}

bool IsLoopback(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

int PortOf(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

// 0, or errno. SO_REUSEADDR: a port whose last connections are in TIME_WAIT is free.
int TryListen(const addrinfo& address, Fd& fd) {
  const int yes = 1;
  fd = Fd(socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
  if (!fd.valid()) return errno;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  return listen(fd.get(), 64) != 0 ? errno : 0;
}

}  // namespace

absl::StatusOr<Listener> Listen(const std::string& host, int port) {
  if (port < 0 || port > 65535)
    return InvalidArgument("the port must be between 0 (any free one) and 65535, found {}", port);
  LS_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(host, port));
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    Listener listener;
    error = TryListen(*address, listener.fd);
    if (error != 0) continue;
    listener.loopback = IsLoopback(*address->ai_addr);
    listener.port = PortOf(listener.fd.get());
    return listener;
  }
  if (error == EADDRINUSE) {
    return Unavailable(
        "port {} on {} is in use; choose another, or 0 for any free one (`ss -ltnp 'sport = :{}'` shows who has it)",
        port, host, port);
  }
  return Errno(error, "cannot serve on {} port {}", host, port);
}

}  // namespace lockstep::serve
