// An agent's end: attends a coordinator, and comes back to it for as long as it takes. gRPC's threads stay in here;
// everything is told in the poller's thread, and may be said from there only. What is said while there is no stream is
// dropped: an agent says all it knows when it is back.
//
// Of several addresses one leads at a time: they are tried in turn until one does. Terms grow from leader to leader,
// and an older one than has been seen is not followed. When a leader says that it may have been replaced, for
// it has lost its journal, or says nothing, the other addresses are asked meanwhile, and a newer term is followed.
//
//   Client client({"node0:29400"}, join, poller, clock, {.welcomed = ..., .told = ..., ...});
//   client.Say(said);  client.Tick();        // at every tick: retries, and notices silence
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/poller.h"
#include "lockstep/base/units.h"
#include "lockstep/control/link.h"
#include "lockstep/control/roster.h"

namespace lockstep::rpc {

// Nothing heard for so long: the other side is taken for lost. Something is said at least once a second.
inline constexpr Seconds kSilence{4};

class Client {
 public:
  struct Listener {
    // At every coming (back): say everything now.
    std::function<void(const control::Place&, const std::string& run)> welcomed;
    std::function<void(const std::string& why)> refused;  // it won't have us; no more retries
    std::function<void(const control::Told&)> told;
    std::function<void(const std::string& why)> lost;  // retries go on
    // Whoever is there leads another run than ours; retries go on.
    std::function<void(const std::string& why)> leads_another = [](const std::string&) {};
  };

  Client(const std::vector<std::string>& addresses, control::Join join, Poller& poller, const Clock& clock,
         Listener listener);
  ~Client();

  void Say(const control::Said& said);
  void Tick();
  // The run that the next Join names.
  void BelongTo(const std::string& run);
  bool connected() const;
  // That is attended, or was tried last.
  const std::string& address() const;
  // Since when there has been no coordinator; 0: there is one.
  Nanos lost_since() const;
  // Why the last attempt failed; "": a coordinator is there, and waits for more nodes.
  const std::string& problem() const;

 private:
  class Link;
  std::unique_ptr<Link> link_;
};

}  // namespace lockstep::rpc
