// `lockstep feed serve --data feed://HOST:PORT`: what a data service is to the loaders of its machine, with batches
// that are made on another one (sender.h). Loaders can't tell the difference but by how long a batch takes.
//
//   LS_ASSIGN_OR_RETURN(auto relay, Relay::Open({.address = "node1:29600", .socket = path}, poller, clock));
//   poller.Run(kTick, [] {});
//
// The relay keeps nothing of a job. Where the other machine is lost, loaders join anew until their patience is over.
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/status.h"

namespace lockstep::relay {

inline constexpr char kScheme[] = "feed://";

struct RelayOptions {
  std::string address = {};  // HOST:PORT of a service that listens
  std::string token = {};    // that it wants; "": none
  std::string name = {};     // what loaders of this machine call the data set; "": as there
  std::string socket = {};
  uint64_t ring_bytes = 0;  // of all ranks together; 0: half of the machine's memory
  Seconds patience{20};     // with the other machine, at the start
};

class Relay {
 public:
  // Asks the service there what it has.
  static absl::StatusOr<std::unique_ptr<Relay>> Open(const RelayOptions& options, Poller& poller, const Clock& clock);
  virtual ~Relay() = default;
  virtual const std::string& name() const = 0;
  virtual uint64_t items() const = 0;
};

}  // namespace lockstep::relay
