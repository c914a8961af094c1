// Names of machines.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep {

// Of this machine.
std::string HostName();

// Whether a host's name or address means the machine itself.
bool IsLoopback(const std::string& host);

// Whether a network interface of this machine has one of the host's addresses. NotFound: none is known; `numeric`: or
// it is a name. Blocks for a name server else.
absl::StatusOr<bool> IsOwnAddress(const std::string& host, bool numeric = false);

// The numeric forms of a host's addresses, the first few; none if it is unknown. nullopt: it took too long, or `stop`
// came. A look-up can't be interrupted, so it gets a thread that nobody waits for.
std::optional<std::vector<std::string>> LookUp(const std::string& host, Seconds at_most, const std::stop_token& stop);

}  // namespace lockstep
