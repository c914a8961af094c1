// HOST:PORT where the nodes of a job meet, and by which address of its own a node is reached.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/status.h"

namespace lockstep::node {

struct Endpoint {
  std::string host;
  int port = 0;  // 0: not said
};
// HOST, HOST:PORT or [V6]:PORT. nullopt: none of these.
std::optional<Endpoint> ParseEndpoint(const std::string& text);

// "HOST:PORT,HOST:PORT", at one of which whoever leads is found.
std::vector<std::string> SplitEndpoints(const std::string& text);

// What a coordinator listens on that others find at `endpoint`: loopback, or an address of this machine, if it says so
// literally; else all addresses, for the host's name may stand for loopback in its own /etc/hosts, and an address for
// this machine in a network behind another one.
std::string ListenAddress(const Endpoint& endpoint);

// The address of this machine by which a peer there sees it. Blocks for a name server.
absl::StatusOr<std::string> OwnAddressTowards(const Endpoint& endpoint);
// Towards the first of several to which a way leads.
absl::StatusOr<std::string> OwnAddressTowardsAny(const std::vector<std::string>& endpoints);

}  // namespace lockstep::node
