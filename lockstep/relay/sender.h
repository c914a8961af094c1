// The end where the data is: ranks of other machines get their batches from the data service of this one. Each of them
// is a rank of that service, held by a thread of gRPC's; the service's threads and memory are all that is shared.
//
//   LS_ASSIGN_OR_RETURN(auto sender, Sender::Start({.address = "0.0.0.0:29600", .socket = path, .token = token}));
#pragma once

#include <memory>
#include <string>

#include "lockstep/base/status.h"

namespace lockstep::relay {

struct SenderOptions {
  std::string address = {};  // HOST:PORT; port 0: any free one
  std::string socket = {};   // of the data service
  std::string token = {};    // that relays must give; "": none, on loopback only
};

class Sender {
 public:
  // InvalidArgument: no address, or beyond loopback without a token. Unavailable: the address can't be had.
  static absl::StatusOr<std::unique_ptr<Sender>> Start(const SenderOptions& options);
  // Waits for ranks to notice, a tenth of a second.
  virtual ~Sender() = default;
  virtual int port() const = 0;
};

}  // namespace lockstep::relay
