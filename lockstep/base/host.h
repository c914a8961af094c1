// Names of machines, and where something of them listens.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep {

// Of this machine.
std::string HostName();

struct Endpoint {
  std::string host;           // without the brackets of an IPv6 address
  std::optional<int> port{};  // 0 to 65535; none: not said
};
// HOST, HOST:PORT or [V6]:PORT. nullopt: none of these.
std::optional<Endpoint> ParseEndpoint(std::string_view text);
// "node1:29600", "[::1]:29600"
std::string EndpointText(const Endpoint& endpoint);
// The host that a text begins with, which is taken off with its brackets: ":PORT" is left, or "", or what is none.
// nullopt: the closing bracket is missing.
std::optional<std::string_view> TakeHost(std::string_view& text);

// Whether a host's name or address means the machine itself.
bool IsLoopback(const std::string& host);

// Whether a network interface of this machine has one of the host's addresses. NotFound: none is known; `numeric`: or
// it is a name. Blocks for a name server else.
absl::StatusOr<bool> IsOwnAddress(const std::string& host, bool numeric = false);

// The numeric forms of a host's addresses, the first few; none if it is unknown. nullopt: it took too long, or `stop`
// came. A look-up can't be interrupted, so it gets a thread that nobody waits for.
std::optional<std::vector<std::string>> LookUp(const std::string& host, Seconds at_most, const std::stop_token& stop);

}  // namespace lockstep
