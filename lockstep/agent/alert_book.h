// The alerts of the agent's own inspections that stand, in the words of the control plane. One that nobody could act on
// is said again while it lasts: a standby may have come, the cap of evictions may be over, and of the network it is the
// second alert that counts. Pure.
//
//   listener.say(book.Take(alert, spec.place.node));
//   for (const control::Alerted& alert : book.Repeat(now)) listener.say(alert);
#pragma once

#include <vector>

#include "lockstep/control/events.h"
#include "lockstep/inspect/alert.h"

namespace lockstep::agent {

class AlertBook {
 public:
  control::Alerted Take(const inspect::Alert& alert, int node);
  // A standby of which these are the alerts has this place now.
  void Seat(int node);
  const std::vector<control::Alerted>& standing() const { return standing_; }
  // Those that are due.
  std::vector<control::Alerted> Repeat(Nanos now);

 private:
  std::vector<control::Alerted> standing_;  // since: said last
};

}  // namespace lockstep::agent
