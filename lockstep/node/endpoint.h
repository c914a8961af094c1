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

// By which the other nodes reach this one: whoever leads, by the name of the endpoint; another one, by the address that
// it has on the way there, or, on that very machine, by that name, too: in its own /etc/hosts this may stand for
// loopback. Of several endpoints, the first to which a way leads. Blocks for a name server.
absl::StatusOr<std::string> OwnAddress(const std::string& endpoints, bool leads);

}  // namespace lockstep::node
