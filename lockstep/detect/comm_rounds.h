// The collectives of a log as rounds: when each member came and when it left. Of those that all members have ended, up
// to a quarter of them may be lost: each member's record says by itself how long it was alone and when it came, and the
// middle of the others hardly changes. Who is missing is neither blamed nor excused.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/detect/comm_thresholds.h"
#include "lockstep/detect/job_steps.h"
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
  int64_t began_ns = -1;    // the first came
  int64_t stands_for = 1;   // so many of its communicator: where one of eight is told, 8
  int64_t place = 0;        // among those of its communicator of which anything is told
  size_t members = 0;       // of its communicator
  std::vector<Part> parts;  // by rank
};

struct Rounds {
  std::vector<Round> all;  // by began_ns
  JobSteps steps;
  size_t first = 0;                  // of the newest `thresholds.window`, or of longer where steps take long
  int64_t begin_ns = 0, end_ns = 0;  // what the newest lie in
  int64_t oldest_ns = 0;             // when the first of all began
  double share = 1;           // of the time that it takes to judge such a job (look_back.h); less: the log has no more
  std::vector<int64_t> told;  // by communicator: how many there were in that time of which anything is told

  std::span<const Round> newest() const { return std::span(all).subspan(first); }
  int64_t length_ns() const { return end_ns - begin_ns; }
  // Slowness lasts that began by then: for the newest three quarters of the time.
  int64_t LastlyNs() const { return begin_ns + length_ns() / 4; }
};

Rounds RoundsOf(const trace::CommLog& log, const CommThresholds& thresholds);
// None, in the time in which sends and receives outside of collectives are judged where there are too few of these.
Rounds WithoutCollectives(const trace::CommLog& log, const CommThresholds& thresholds);

}  // namespace lockstep::detect
