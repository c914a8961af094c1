// Who waits for whom in communication, and who does so in a circle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "lockstep/detect/comm_standing.h"

namespace lockstep::detect {

// What ranks can be in, and the ranks that are not in it yet. Of transfers that run together it is all of them.
struct Wait {
  const trace::CommOp* op;
  std::vector<int> in;             // ranks
  std::vector<int> behind;         // members, whom those wait for
  std::vector<int> yet_to_launch;  // of these: surely have not launched it, nor the other end of it
  size_t ended = 0;                // members that have ended it
  bool somebody = false;           // those wait for ranks, too, that are not known
  bool guessed = false;  // that those wait for the ranks behind: the ends of these may be launched, or not needed
  // Transfers of it: whose peer is behind or not known, and those that are there on both sides.
  std::vector<const trace::CommOp*> apart, together;
};

class Waits {
 public:
  // `standing` must outlive it.
  explicit Waits(const Standing& standing);

  const std::vector<Wait>& all() const { return waits_; }
  // What a rank is in; null: nothing.
  const Wait* Of(int rank) const;
  // It waits for nobody.
  bool IsEnd(int rank) const;
  // All are in what it is in, and none has ended it.
  bool IsStuckTogether(int rank) const;
  // Of such a wait: one of its ranks may be held by another, to which it has sent before and which waits itself or is
  // not there, or which waits itself and exchanges with it together with what it waits in.
  bool IsHeld(const Wait& wait) const { return held_.contains(wait.op); }
  // Of a send that has not ended: its peer is in nothing, as far as it told, and is not known to have launched its end.
  bool IsNotThere(const trace::CommOp& send) const;

 private:
  void LookBehind(Wait& wait);
  void LookAtTransfers(Wait& wait);
  bool IsBehind(const trace::CommOp& op, Wait& wait) const;
  void LookForUnknown(const trace::CommOp& op, Wait& wait);
  void FindHeld();
  const std::vector<int>& SilentOutside(uint32_t communicator);

  const Standing& standing_;
  const std::vector<int> silent_;  // members that have told nothing
  std::map<uint32_t, std::vector<int>> silent_outside_;
  std::vector<Wait> waits_;
  std::map<int, size_t> wait_of_;
  std::set<const trace::CommOp*> held_;  // what those waits are in
};

// Sets of two ranks or more, ascending, that wait for each other directly or through others, and for nobody else.
std::vector<std::vector<int>> FindCircles(const Waits& waits);
// The same of ranks that have yet to launch what the others wait in; they may wait for ranks outside, too.
std::vector<std::vector<int>> FindOpenCircles(const Waits& waits);

}  // namespace lockstep::detect
