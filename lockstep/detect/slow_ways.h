// What would make some ways between ranks slow, and others not (slow_link.h finds out which are).
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/incident/incident.h"

namespace lockstep::detect {

// From one rank to another, over a port of their network devices.
struct Way {
  int from, to;
  uint8_t port;
  auto operator<=>(const Way&) const = default;

  template <typename Hash>
  friend Hash AbslHashValue(Hash hash, const Way& way) {
    const uint64_t ends = uint64_t{static_cast<uint32_t>(way.from)} << 32 | static_cast<uint32_t>(way.to);
    return Hash::combine(std::move(hash), ends, way.port);
  }
};

struct Slowness {
  double usual_ns = 0, ns = 0;  // of a message, of like ways and of this one
  double share = 0;             // of the time, over all its rounds
  int magnitude = 0;            // the smallest of what is slow
  bool at_least = false;        // messages that nobody could measure may have cost more
};

struct Ways {
  std::map<Way, Slowness> slow;
  std::map<Way, int> fine;  // and the largest magnitude of what is

  // A way that is fine clears nobody of being slow with larger messages: bandwidth is another thing than latency.
  bool Clears(const Way& way, int magnitude) const {
    const auto found = fine.find(way);
    return found != fine.end() && found->second + 1 >= magnitude;
  }
};

// The fewest explanations of all slow ways, each with those that are equally good: a port, a rank or a node that sends
// or receives slowly, or what lies between two of them. Of very many slow ways nobody is named: they are one finding.
// `hosts`: of ranks, where known. Cost: by slow ways to the second power, which are few.
std::vector<incident::Finding> ExplainSlowWays(const Ways& ways, const std::map<int, std::string>& hosts);

}  // namespace lockstep::detect
