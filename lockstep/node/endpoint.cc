#include "lockstep/node/endpoint.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/file.h"

namespace lockstep::node {
namespace {

absl::StatusOr<std::string> OwnAddressTowards(const Endpoint& endpoint) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), "9", &hints, &found);
  if (error != 0) return NotFound("{}: {}", endpoint.host, gai_strerror(error));
  // Connecting a datagram socket sends nothing: it asks for the route.
  const Fd fd(socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  auto* address = reinterpret_cast<sockaddr*>(&own);
  socklen_t length = sizeof(own);
  char text[NI_MAXHOST] = "";
  const bool routed = fd.valid() && connect(fd.get(), found->ai_addr, found->ai_addrlen) == 0 &&
                      getsockname(fd.get(), address, &length) == 0 &&
                      getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0;
  freeaddrinfo(found);
  if (!routed) return Unavailable("no route to {}; name an address of this machine with --local-addr", endpoint.host);
  return IsLoopback(text) && !IsLoopback(endpoint.host) ? endpoint.host : text;
}

}  // namespace

std::vector<std::string> SplitEndpoints(const std::string& text) {
  std::vector<std::string> endpoints;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    endpoints.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return endpoints;
}

std::string ListenAddress(const Endpoint& endpoint) {
  if (!IsLoopback(endpoint.host) && !IsOwnAddress(endpoint.host, true).value_or(false))
    return EndpointText({"::", endpoint.port});
  return EndpointText(endpoint);
}

absl::StatusOr<std::string> OwnAddress(const std::string& endpoints, bool leads) {
  if (leads) return ParseEndpoint(endpoints).value_or(Endpoint{}).host;
  absl::StatusOr<std::string> found = Unavailable("no endpoint");
  for (const std::string& endpoint : SplitEndpoints(endpoints)) {
    found = OwnAddressTowards(ParseEndpoint(endpoint).value_or(Endpoint{}));
    if (found.ok()) break;
  }
  return found;
}

}  // namespace lockstep::node
