// What can befall a job whose telemetry is made up (telemetry.h): faults, and what only looks like one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "lockstep/base/report.h"
#include "lockstep/base/status.h"
#include "lockstep/base/units.h"

namespace lockstep::synth {

enum class TelemetryFaultKind : uint8_t {
  // Somebody's fault.
  kSlowRank,      // computes `factor` times as long
  kSlowLink,      // messages between `rank` and `peer`, both ways, take `factor` times as long
  kSlowSender,    // all that `rank` sends does, on `port` where one is given
  kSlowReceiver,  // all that it receives does
  kSlowBlock,     // messages between `rank` to `peer`, all of them, and other ranks, both ways
  kSlowBlockOut,  // those from them to other ranks
  kSlowBlockIn,   // those from other ranks to them
  kStopped,       // `rank` does nothing any more: it comes to no further collective
  kLostMessage,   // from `rank`, in its next collective with others: nobody ends that one
  kDeadlock,      // `rank` calls the collective of all ranks before the one of its data-parallel group
  kMismatch,      // `rank` calls another function than the others
  kSkipped,       // `rank` leaves a collective out
  // Nobody's.
  kGc,          // in `share` of the steps of each rank a pause of `seconds`
  kCheckpoint,  // every `every` seconds all ranks pause for about `seconds`
  kEvaluation,  // the same, and longer by a third on some ranks than on others
  kLengths,     // a replica's step takes exp(factor * normal) times as long, each time anew
  kWarmUp,      // the first steps take up to `factor` times as long
  kPause,       // all ranks stand still for `seconds`, once
  kRotating,    // in each step another rank computes `factor` times as long
  kEverybody,   // all compute `factor` times as long
};
const char* TelemetryFaultName(TelemetryFaultKind kind);  // "slow_rank"

struct TelemetryFault {
  TelemetryFaultKind kind = TelemetryFaultKind::kSlowRank;
  int rank = 0, peer = -1, port = -1;  // -1: whichever
  double factor = 1.5;
  Seconds seconds{1};
  double share = 0.01;
  Seconds from{0}, until{std::numeric_limits<double>::infinity()};  // since the job began
  Seconds every{0};  // of a fault: it comes and goes, on for the first half of each such period; 0: it stays

  bool IsOn(Seconds now) const;
};

// "slow_rank:rank=13,factor=1.2,from=60". What is not said has the default above. Errors name what was expected.
absl::StatusOr<TelemetryFault> ParseTelemetryFault(const std::string& text);
Json TelemetryFaultJson(const TelemetryFault& fault);

}  // namespace lockstep::synth
