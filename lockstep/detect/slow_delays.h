// How long messages were under way between ranks, by what can be compared and by way.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "lockstep/detect/comm_rounds.h"
#include "lockstep/detect/slow_ways.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

// What is alike can be compared. By size of what is under way (magnitude), and by what was measured.
struct MessageClass {
  int magnitude;
  enum class Measure : uint8_t { kWire, kFirst, kAlone } measure;
  uint32_t function = 0;
  size_t members = 0;  // of the communicator; 0: a send outside of collectives
  auto operator<=>(const MessageClass&) const = default;
};

struct DelaySample {
  double ns;        // of a message, once both ends had come
  double messages;  // that took so long, partly beside each other:
  double most_ns;   // for all of them it did not take longer than this
  int64_t at_ns;    // wall
};

struct WayDelays {
  Way way;
  std::vector<DelaySample> samples;  // by at_ns
};

// The ways of each class ascending.
using Delays = std::map<MessageClass, std::vector<WayDelays>>;

// Those of all rounds, and of the sends outside of collectives up to their end.
Delays DelaysOf(const trace::CommLog& log, const Rounds& rounds);

}  // namespace lockstep::detect
