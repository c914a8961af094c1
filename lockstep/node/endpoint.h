// Where the nodes of a job meet, and by which address of its own a node is reached.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/host.h"
#include "lockstep/base/status.h"

namespace lockstep::node {

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
