// What the collectors of a large job would have noted: snapshots of trails (trace/trail_file.h) of a job that never
// ran, with known faults and the irregularities of healthy jobs. For whoever detects, to be held against.
//
// A rank runs its pipeline schedule (1F1B): receives, computes, all-reduces over its tensor-parallel group, gathers
// keys and values over its context-parallel group (backward: reduces theirs), exchanges tokens where there are experts,
// sends; then reduces gradients over its data-parallel group, which those that share a context are of too, all ranks
// agree on their norm, and parameters are gathered. Where these are sharded in layers, each layer's are gathered before
// it computes and its gradients reduced behind it, and what belongs to no layer is so once in a microbatch; where the
// group is the whole job, all of that, and the norm, is of one communicator. Collectives end once all have come and
// their slowest edge has carried its share: rings over all ports of a rank (or trees). Inside of a host no network has
// a part in them, so there are no messages to tell of. Deterministic in (shape, faults, seed). Not thread-safe. Cost:
// about 0.2 us per record.
//
//   LS_ASSIGN_OR_RETURN(Telemetry job, Telemetry::Create({.layout = {.tp = 8, .dp = 16}}, faults, 1));
//   job.Run(Seconds{10});
//   trace::CommLog log = trace::JoinTrails(job.Take());
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/base/status.h"
#include "lockstep/base/units.h"
#include "lockstep/cluster/layout.h"
#include "lockstep/synth/telemetry_fault.h"
#include "lockstep/trace/trail_file.h"

namespace lockstep::synth {

inline constexpr Nanos kTelemetryBegin{1'760'000'000'000'000'000};  // of the job, wall time

struct TelemetryShape {
  cluster::Layout layout{.dp = 8};  // vpp of 1
  int ports = 1;                    // network ports of a rank
  int ranks_per_host = 8;
  int microbatches = 4;                  // per step
  Seconds forward{0.15}, backward{0.3};  // of one microbatch on one stage
  Seconds optimizer{0.05};
  double jitter = 0.01;             // of every computation: its logarithm has this standard deviation
  Bytes activations{64 << 20};      // of a microbatch: what is all-reduced, exchanged and sent on
  Bytes gradients{512 << 20};       // of a rank
  int sharded_layers = 0;           // parameters are sharded in so many, as FSDP and ZeRO-3 do; 0: they aren't
  double port_bytes_per_s = 25e9;   // of the network
  double host_bytes_per_s = 300e9;  // inside of a host
  bool trees = false;               // data-parallel collectives go over trees
  Seconds clock_offset{0.0};        // clocks of hosts differ by this, normally distributed

  absl::Status Validate() const;
};

class Telemetry {
 public:
  Telemetry(Telemetry&&) noexcept;
  Telemetry& operator=(Telemetry&&) noexcept;
  ~Telemetry();
  // kInvalidArgument: a shape that can't be, or a fault on a rank, peer or port that the job does not have.
  static absl::StatusOr<Telemetry> Create(const TelemetryShape& shape, const std::vector<TelemetryFault>& faults,
                                          uint64_t seed);
  // Whole steps, until `since_begin`; after a fault that ends all progress, time alone goes on.
  void Run(Seconds since_begin);
  // Of every rank: what ended since the last call, and what is under way now.
  std::vector<trace::TrailSnapshot> Take();
  // A fault has ended all progress.
  bool IsStuck() const;
  // Faults of the network that no message has met: nothing passes there, or not while they are on.
  std::vector<TelemetryFault> Unmet() const;

 private:
  class Job;
  explicit Telemetry(std::unique_ptr<Job> job);
  std::unique_ptr<Job> job_;
};

}  // namespace lockstep::synth
