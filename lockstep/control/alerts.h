// What the machines' own inspections said lately, and whom that makes a culprit. A machine that says that it is broken
// stays one until it says that this is over; of the network it takes several alerts in a while, and whether they were
// cleared meanwhile does not count. Cost: to take one, that of the alerts of its node which stand or are of that while.
//
//   if (alerts.Take(event, now, policy.network_window)) ... alerts.Broken(), alerts.Unsteady(policy, now)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/control/events.h"

namespace lockstep::control {

class Alerts {
 public:
  // The newest alert against a node, and how many there were.
  struct Complaint {
    Alerted newest;
    int count = 1;
    bool stands = true;  // one of them is not cleared
  };

  // False: it is known already.
  bool Take(const Alerted& alert, Nanos now, Seconds window);
  // Another machine has this node's place.
  void Forget(int node);
  // By node of the world to come, which it was before; the others are gone.
  void Renumber(const std::vector<int>& from);

  // By node.
  std::vector<Complaint> Broken() const;
  std::vector<Complaint> Unsteady(const Policy& policy, Nanos now) const;
  // More than one node complains of the network.
  bool IsWidespread(const Policy& policy, Nanos now) const;

 private:
  std::vector<Complaint> NetworkOf(Nanos from) const;
  // Of the alerts that count.
  template <typename Counts>
  std::vector<Complaint> ByNode(const Counts& counts) const;
  static void Drop(std::vector<Alerted>& kept, Nanos before);

  std::map<int, std::vector<Alerted>> kept_;  // by node, in the order of their coming
};
// "gpu_xid of gpu3: Xid 79; 2 alerts in all"
std::string ComplaintText(const Alerts::Complaint& complaint);

}  // namespace lockstep::control
