// HOST:PORT where the nodes of a job meet, and by which address of its own a node is reached.
#pragma once

#include <optional>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::node {

struct Endpoint {
  std::string host;
  int port = 0;  // 0: not said
};
// HOST, HOST:PORT or [V6]:PORT. nullopt: none of these.
std::optional<Endpoint> ParseEndpoint(const std::string& text);

// What a coordinator listens on that others find at `endpoint`: loopback if it says so literally, else all addresses,
// for the host's name may stand for loopback in its own /etc/hosts.
std::string ListenAddress(const Endpoint& endpoint);

// The address of this machine by which a peer there sees it. Blocks for a name server.
absl::StatusOr<std::string> OwnAddressTowards(const Endpoint& endpoint);

}  // namespace lockstep::node
