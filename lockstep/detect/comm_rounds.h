// The collectives of a log that all members have ended, as rounds: when each member came and when it left.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/trace/comm_log.h"

namespace lockstep::detect {

struct Part {
  int rank;
  int64_t came_ns, left_ns;  // wall, on one clock for all
  // Since the rank left the collective before, whichever it was: what it did by itself. -1: nothing before is known.
  int64_t alone_ns;
  auto operator<=>(const Part&) const = default;
};

struct Round {
  uint32_t communicator = 0;  // index in the log
  int64_t sequence = 0;
  uint32_t function = 0;    // index in the log
  uint64_t bytes = 0;       // that one of them sent
  bool ring = false;        // as some of them say; else not known
  int64_t began_ns = 0;     // the first came
  int64_t stands_for = 1;   // so many of its communicator: where one of eight is told, 8
  std::vector<Part> parts;  // by rank
};

struct Rounds {
  std::vector<Round> all;            // by began_ns
  int64_t begin_ns = 0, end_ns = 0;  // what they lie in
  double share = 1;  // of the time that it takes to judge such a job (look_back.h); less: the log has no more

  int64_t length_ns() const { return end_ns - begin_ns; }
};

// Those of the newest `thresholds.window`, or of a longer time where steps take long (look_back.h).
Rounds NewestRounds(const trace::CommLog& log, const CommThresholds& thresholds);

}  // namespace lockstep::detect
