// The coordinator's end: agents attend, each on a stream of its own. gRPC's threads stay in here; everything is told in
// the poller's thread, and may be said from there only.
//
//   LS_ASSIGN_OR_RETURN(auto server, Server::Start("127.0.0.1:29400", poller, clock, {.joined = ..., .said = ..., .left
//   = ...})); server->Welcome(peer, place, run, 0);  server->Tell(peer, told);  server->Heartbeat(false);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/status.h"
#include "lockstep/control/link.h"
#include "lockstep/control/roster.h"

namespace lockstep::rpc {

class Server {
 public:
  using Peer = uint64_t;  // never used again for another one
  struct Listener {
    std::function<void(Peer, const control::Join&)> joined;
    std::function<void(Peer, const control::Said&)> said;
    std::function<void(Peer)> left;
    std::function<void(const absl::Status&)> unreadable;  // what an agent said: it is of a newer version, or damaged
  };

  // Unavailable: the address can't be had. Port 0: any free one.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& address, Poller& poller, const Clock& clock,
                                                       Listener listener);
  virtual ~Server() = default;

  virtual int port() const = 0;
  // term: of this coordinator, among those that lead the run one after the other; 0: it is the only one.
  virtual void Welcome(Peer peer, const control::Place& place, const std::string& run, int64_t term) = 0;
  // Says why, and ends the stream.
  virtual void Refuse(Peer peer, const std::string& why) = 0;
  // The same of a coordinator that does not lead: the agent goes on asking, here and elsewhere.
  virtual void TurnAway(Peer peer, const std::string& why) = 0;
  // The same of one that leads another run than the agent's.
  virtual void SendElsewhere(Peer peer, const std::string& why) = 0;
  virtual void Tell(Peer peer, const control::Told& told) = 0;
  // Ends the stream; `left` is not called for it.
  virtual void Drop(Peer peer) = 0;
  // To all: we are there, what our clock says, and whether somebody else may lead by now.
  virtual void Heartbeat(bool may_be_replaced) = 0;
  virtual size_t peers() const = 0;
};

}  // namespace lockstep::rpc
