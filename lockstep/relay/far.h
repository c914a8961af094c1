// The data service on the other machine: how a relay reaches it. Included where gRPC's headers are.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "batches.grpc.pb.h"
#include "lockstep/base/status.h"

namespace lockstep::relay {

// A machine that has vanished is missed by whoever has a stream with it.
inline constexpr int kPingEveryMs = 5000, kPongMs = 5000;
inline constexpr std::chrono::milliseconds kPingsMissed{kPingEveryMs + kPongMs};

// Of a list of ids that goes with a join: 128 million.
inline constexpr int kMostIdsBytes = 1 << 30;

inline constexpr char kAuthorization[] = "authorization";
inline std::string Bearer(const std::string& token) { return "Bearer " + token; }

struct Far {
  std::string address;  // HOST:PORT
  std::string token;

  // A connection of its own: nobody waits for another rank's bytes, or for its next attempt.
  std::unique_ptr<Batches::Stub> Reach() const;
  void Sign(grpc::ClientContext& context) const;
  // What gRPC says, as ours, with the address.
  absl::Status Problem(const grpc::Status& status) const;
};

}  // namespace lockstep::relay
