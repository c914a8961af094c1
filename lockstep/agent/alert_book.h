// The alerts of the agent's own inspections that stand, in the words of the control plane. One that nobody could act on
// is said again while it lasts: a standby may have come, the cap of evictions may be over, and of the network it is the
// second alert that counts. Pure.
//
//   listener.say(book.Take(alert, spec.place.node));
//   for (const control::Alerted& alert : book.Repeat(now)) listener.say(alert);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/control/events.h"
#include "lockstep/inspect/alert.h"

namespace lockstep::agent {

// Whose the process is that a line of the kernel's log names, which is that of the whole machine: ": process 4711 was
// rank 3", or is not known to be any of these. "" where no process is named. In a container the number may be another.
std::string WhoseText(const inspect::Alert& alert, const std::map<int64_t, RankId>& ranks);

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
