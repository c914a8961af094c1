// Do ranks wait in a circle because of the order in which they launch? Not for that alone, where each had launched in
// that order before and it had ended: one of them may be held elsewhere, its host for instance, and not have launched
// what others wait in. Pure. Cost: the ops of those ranks, once for each communicator in which others wait for them.
#pragma once

#include <map>
#include <vector>

#include "lockstep/detect/comm_standing.h"
#include "lockstep/detect/comm_waits.h"

namespace lockstep::detect {

struct CircleOrder {
  bool as_before = false;     // of every rank
  std::vector<int> may_hang;  // ascending: have not launched what others wait in, and may not be held by their order
};

class CircleOrders {
 public:
  // What is given must outlive it. `circles`: of FindCircles, or FindOpenCircles.
  CircleOrders(const Standing& standing, const Waits& waits, const std::vector<std::vector<int>>& circles);
  CircleOrder Of(const std::vector<int>& circle) const;

 private:
  bool HasLaunched(int rank, const trace::CommOp& op) const;
  bool IsAsBefore(int rank, const trace::CommOp& op) const;

  const Standing& standing_;
  const Waits& waits_;
  std::map<int, std::vector<const trace::CommOp*>> programs_;  // of the ranks in circles, in the order of launch
};

}  // namespace lockstep::detect
