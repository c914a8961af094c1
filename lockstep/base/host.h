// Names of machines.
#pragma once

#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep {

// Of this machine.
std::string HostName();

// Whether a host's name or address means the machine itself.
bool IsLoopback(const std::string& host);

// Whether this is a numeric address that a network interface of this machine has.
bool IsOwnAddress(const std::string& address);

// The numeric forms of a host's addresses, the first few; none if it is unknown. nullopt: it took too long, or `stop`
// came. A look-up can't be interrupted, so it gets a thread that nobody waits for.
std::optional<std::vector<std::string>> LookUp(const std::string& host, Seconds at_most, const std::stop_token& stop);

}  // namespace lockstep
